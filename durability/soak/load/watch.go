package load

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/karve-k8s/karve/durability"
)

// watched are the collections that the run watches, as a client would: what the load
// writes, what controllers write, and what nobody writes, where only bookmarks keep
// a watch ahead of compaction.
func watched() []string {
	paths := []string{
		"/api/v1/pods", "/api/v1/nodes", "/apis/apps/v1/deployments", "/api/v1/namespaces",
		"/apis/" + group + "/v1/quiets", "/apis/scheduling.k8s.io/v1/priorityclasses", "/apis/storage.k8s.io/v1/storageclasses",
	}
	for _, k := range kinds {
		paths = append(paths, k.collection())
	}
	return paths
}

// watchers keep what the run's watches have seen, over all lives.
type watchers struct {
	mu        sync.Mutex
	revision  map[string]int64
	events    int
	bookmarks int
	ends      int // watches that the server ended, as it does after some minutes
	failures  int // watches that ended otherwise while the server was there
	// relists are those after a 410. The first of each watch after a start is not
	// among them: a watch cache begins with the revision of the start.
	relists      int
	afterRestart int
	resumed      map[string]bool // has seen something since the start
}

func newWatchers() *watchers { return &watchers{revision: map[string]int64{}} }

// start begins a life.
func (w *watchers) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resumed = map[string]bool{}
}

// watch lists and watches a collection as a client does: it goes on after each end
// with the last revision, and lists again only if the server says that this is gone.
func (s *soak) watch(ctx context.Context, api *durability.API, path string) {
	w := s.seen
	for ctx.Err() == nil {
		w.mu.Lock()
		revision := w.revision[path]
		w.mu.Unlock()
		if revision == 0 {
			_, listed, err := api.List(ctx, path, "")
			if err != nil {
				pause(ctx, time.Second)
				continue
			}
			revision = listed
			w.mu.Lock()
			w.revision[path] = listed
			w.mu.Unlock()
		}
		err := api.Watch(ctx, path, revision, func(e durability.Event) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.revision[path] = e.Object.Revision()
			w.resumed[path] = true
			if e.Type == "BOOKMARK" {
				w.bookmarks++
			} else {
				w.events++
			}
			return nil
		})
		if ctx.Err() != nil || s.killing.Load() {
			return
		}
		w.mu.Lock()
		switch {
		case errors.Is(err, durability.ErrExpired) && w.resumed[path]:
			w.relists++
			w.revision[path] = 0
			s.say("the watch of %s has to list again: %v", path, err)
		case errors.Is(err, durability.ErrExpired):
			w.afterRestart++
			w.revision[path] = 0
			w.resumed[path] = true
		case err != nil:
			w.failures++
		default:
			w.ends++
		}
		w.mu.Unlock()
		if err != nil {
			pause(ctx, time.Second)
		}
	}
}
