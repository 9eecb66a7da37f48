package main

import (
	"context"
	"errors"
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

// watch lists and watches a collection as a client does: when a watch ends, it watches from the last
// revision, and lists again only after a 410.
func (s *soak) watch(ctx context.Context, api *durability.API, path string) {
	for revision := int64(0); ctx.Err() == nil; {
		if revision == 0 {
			_, listed, err := api.List(ctx, path, "")
			if err != nil {
				pause(ctx, time.Second)
				continue
			}
			revision = listed
		}
		err := api.Watch(ctx, path, revision, func(e durability.Event) error {
			revision = e.Object.Revision()
			return nil
		})
		if err == nil || ctx.Err() != nil {
			continue
		}
		if errors.Is(err, durability.ErrExpired) {
			s.count("watches that had to list again")
			s.say("the watch of %s has to list again: %v", path, err)
			revision = 0
		} else {
			s.count("watches that broke")
		}
		pause(ctx, time.Second)
	}
}
