package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/karve-k8s/karve/test/durability"
)

// watched are the collections that the soak watches, as a client would: those that the load writes,
// those that controllers write, and quiet ones, where only bookmarks keep a watch ahead of
// compaction.
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

// watchers are the watches over all lives.
type watchers struct {
	mu       sync.Mutex
	revision map[string]int64
	resumed  map[string]bool // has had an event since the start
}

func newWatchers() *watchers { return &watchers{revision: map[string]int64{}} }

// start begins a life.
func (w *watchers) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resumed = map[string]bool{}
}

// watch lists and watches a collection as a client does: when a watch ends, it watches from the last
// revision, and lists again only after a 410.
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
			return nil
		})
		if ctx.Err() != nil || s.killing.Load() {
			return
		}
		w.mu.Lock()
		switch {
		case errors.Is(err, durability.ErrExpired) && w.resumed[path]:
			s.count("watches that had to list again")
			w.revision[path] = 0
			s.say("the watch of %s has to list again: %v", path, err)
		case errors.Is(err, durability.ErrExpired): // a watch cache begins with the revision of the start
			w.revision[path] = 0
			w.resumed[path] = true
		case err != nil:
			s.count("watches that broke")
		}
		w.mu.Unlock()
		if err != nil {
			pause(ctx, time.Second)
		}
	}
}
