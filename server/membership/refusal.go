package membership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/karve-k8s/karve/certs"
)

// ErrOther means that the keys of a server are not those of the cluster in the datastore, or that it
// lacks some of them.
var ErrOther = errors.New("the datastore has a cluster whose keys this server does not have")

// accept reads the record. The error says why s may not start on the datastore, as that of refusal does.
func (c Cluster) accept(ctx context.Context, s Server, local certs.Shared) (*record, int64, error) {
	for tries := attempts; ; tries-- {
		r, revision, err := c.read(ctx)
		if err != nil {
			return nil, 0, err
		}
		refused := c.refusal(ctx, r, s, local)
		if refused == nil || r != nil || tries == 0 {
			return r, revision, refused
		}
		// A server may have stored the record, and then its objects, since it was read.
		if now, _, err := c.read(ctx); err != nil || now == nil {
			return nil, 0, cmp.Or(err, refused)
		}
	}
}

// refusal says why s may not start on the datastore with the record r: [ErrOther], [ErrEmpty], errUnknown or another
// error. r is nil if there is no record.
func (c Cluster) refusal(ctx context.Context, r *record, s Server, local certs.Shared) error {
	if r == nil {
		if empty, err := c.isNew(ctx); err != nil || empty {
			return cmp.Or(err, s.checkServed())
		}
		// In an existing cluster, new keys would make this server the only one that has them.
		if lacking := lackingOf(local); len(lacking) > 0 {
			return c.other(r, s, lackingReason(s, local, lacking))
		}
		return c.checkStored(ctx, s, local)
	}
	differing, lacking, err := compare(local, r)
	own, _ := local.Fingerprints()
	differing = slices.DeleteFunc(differing, func(name certs.Name) bool {
		if len(r.Sealed) == 0 { // a replacement may have been killed before it had written the record
			return local.Trusted(name, r.Keys[name])
		}
		return s.Token != nil && slices.Contains(r.Rotated, own[name]) // a key that was the cluster's: fetch replaces it
	})
	switch {
	case err != nil:
		return err
	case len(differing) > 0:
		return c.other(r, s, fmt.Sprintf("%s %s not the cluster's", files(s.Certs.Dir, differing), are(differing)))
	case len(lacking) > 0 && (len(r.Sealed) == 0 || s.Token == nil):
		return c.other(r, s, lackingReason(s, local, lacking))
	}
	return nil
}

func lackingReason(s Server, local certs.Shared, lacking []certs.Name) string {
	if len(local) == 0 {
		return fmt.Sprintf("%s has none of its keys", s.Certs.Dir)
	}
	return fmt.Sprintf("%s %s missing", files(s.Certs.Dir, lacking), are(lacking))
}

// other returns ErrOther with a reason and the ways on.
func (c Cluster) other(r *record, s Server, reason string) error {
	ways := []string{"put its keys there: certs/ of the server that ran the cluster, or that of a backup or a copy of its data directory"}
	switch {
	case r != nil && len(r.Sealed) > 0 && s.Token != nil:
		ways = append(ways, "move these files away, if the datastore is a backup from before a replacement of keys: the start fetches its keys")
	case r != nil && len(r.Sealed) > 0:
		ways = append(ways, fmt.Sprintf("give the file with the token that its servers share as --%s", Option))
	case !c.PrivateStorage && (r == nil || len(r.Sealed) == 0):
		ways = append(ways, fmt.Sprintf("start the server that has them with --%s, and then this one, with the same token and a new --data-dir", Option))
	}
	ways = append(ways,
		"use a new --data-dir and another datastore for a cluster of its own",
		fmt.Sprintf("or go on with new authorities by --%s %s, after which kubeconfigs, tokens and node certificates that the old ones have signed are refused", NewAuthoritiesOption, r.id()))
	return fmt.Errorf("%w (%s): %s. Do one of these: %s", ErrOther, c.key(), reason, strings.Join(ways, "; "))
}

// compare returns the keys of a server that differ from those of the record, and those that only the
// record has.
func compare(local certs.Shared, r *record) (differing, lacking []certs.Name, err error) {
	own, err := local.Fingerprints()
	if err != nil {
		return nil, nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(r.Keys)) {
		switch has, ok := own[name]; {
		case !ok:
			lacking = append(lacking, name)
		case has != r.Keys[name]:
			differing = append(differing, name)
		}
	}
	return differing, lacking, nil
}

func lackingOf(local certs.Shared) (lacking []certs.Name) {
	for _, name := range certs.SharedNames() {
		if _, ok := local[name]; !ok {
			lacking = append(lacking, name)
		}
	}
	return lacking
}

// files names the files of names in one directory.
func files(dir string, names []certs.Name) string {
	var all []string
	for i, name := range names {
		path := certs.File(dir, name)
		if i > 0 {
			path = filepath.Base(path)
		}
		all = append(all, path)
	}
	return strings.Join(all, ", ")
}

func are(names []certs.Name) string {
	if len(names) == 1 {
		return "is"
	}
	return "are"
}
