package replacements

import (
	"context"
	"errors"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// at is storage at a revision.
type at struct {
	storage.Interface
	revision     uint64
	away         error
	asked, began int
}

func (a *at) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

func (a *at) GetCurrentResourceVersion(context.Context) (uint64, error) {
	a.asked++
	return a.revision, a.away
}

func (a *at) Watch(context.Context, string, storage.ListOptions) (watch.Interface, error) {
	a.began++
	return watch.NewEmptyWatch(), nil
}

// A watch from a revision that the datastore has not reached is 410, and what another server may have told is asked for.
func TestWatchesFromTheFutureAreRefused(t *testing.T) {
	a := &at{revision: 100}
	store := newReached(a)
	for _, c := range []struct {
		from          string
		revision      uint64
		away          error
		refused       bool
		asked, begins int
	}{
		{from: "101", revision: 100, refused: true, asked: 1},
		{from: "100", revision: 100, asked: 1, begins: 1},
		{from: "100", revision: 100, begins: 1}, // known
		{from: "0", revision: 100, begins: 1},
		{from: "", revision: 100, begins: 1},
		{from: "150", revision: 150, asked: 1, begins: 1}, // from another server
		{from: "151", revision: 150, refused: true, asked: 1},
		{from: "151", revision: 150, away: errors.New("away"), asked: 1, begins: 1},
		{from: "not a number", revision: 150, begins: 1}, // upstream's error
	} {
		*a = at{revision: c.revision, away: c.away}
		_, err := store.Watch(t.Context(), "/", storage.ListOptions{ResourceVersion: c.from})
		if status := apierrors.APIStatus(nil); c.refused && (!errors.As(err, &status) || status.Status().Code != http.StatusGone) || !c.refused && err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		if a.asked != c.asked || a.began != c.begins {
			t.Errorf("%+v: asked %d times, %d watches began", c, a.asked, a.began)
		}
	}
}
