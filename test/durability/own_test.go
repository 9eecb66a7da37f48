package durability

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
)

// writeOwn sets an object that nobody else writes, or deletes it now and then, through the journal. Without an answer, nobody knows how the object
// is, and answered is false from then on.
func writeOwn(ctx context.Context, api *API, j *Journal, in collection, name string) (answered bool, err error) {
	before, open := j.Known(name)
	if open {
		return false, nil
	}
	w := Write{Collection: in.path, Object: Object{APIVersion: in.apiVersion, Kind: in.kind, Metadata: Metadata{Name: name}}}
	if !before.Present || rand.IntN(6) > 0 {
		w.Value = strconv.FormatUint(rand.Uint64(), 36) + strings.Repeat("x", rand.IntN(2000))
	}
	err = w.Do(ctx, api, j, name)
	_, open = j.Known(name)
	return !open, err
}

// compareOwn compares the objects of a collection whose names begin with prefix with the journal.
func compareOwn(ctx context.Context, api *API, j *Journal, in collection, prefix string) error {
	all, revision, err := api.List(ctx, in.path, "")
	if err != nil {
		return err
	}
	have := map[string]State{}
	for _, o := range all {
		if strings.HasPrefix(o.Metadata.Name, prefix) {
			have[o.Metadata.Name] = Observe(o)
		}
	}
	return j.Compare(have, revision)
}
