package server

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/sharedinformers"
)

// awaitInformers returns when the informers of this process have seen the changes of a reset.
// These are the informers of the API server, which simulated nodes share, of the controllers, of
// the garbage collector and of the scheduler.
//
// It does not wait for their event handlers. While the workers are paused, a handler that adds to
// a queue may block until a worker runs. Controllers decide by the contents of their informers; a
// handler only makes them reconcile again.
func (s *controlPlane) awaitInformers(ctx context.Context, engine *datastore.Engine, done *datastore.ResetResult) error {
	api := s.api.Server()
	changes, err := changesOf(ctx, api, engine, done)
	if err != nil {
		return err
	}
	all, err := s.followers(api, changes)
	if err != nil {
		return err
	}
	return sharedinformers.Wait(ctx, all, changes)
}

// forgetAbsent makes the controllers forget which owners are absent.
func (s *controlPlane) forgetAbsent() {
	if s.controlling != nil {
		s.controlling.ForgetAbsentOwners()
	}
}

// changesOf returns the objects that a reset has changed, with their revisions in storage.
func changesOf(ctx context.Context, api *apiserver.Server, engine *datastore.Engine, done *datastore.ResetResult) (sharedinformers.Changes, error) {
	changes := sharedinformers.Changes{Revision: done.Revision, Of: map[schema.GroupResource][]sharedinformers.Change{}}
	keys := map[schema.GroupResource]map[string]string{}
	revisionOf := func(key string, at int64) (int64, error) {
		got, err := engine.Range(ctx, datastore.RangeRequest{Key: key, Revision: at, KeysOnly: true})
		if err != nil || len(got.KVs) == 0 {
			return 0, err
		}
		return got.KVs[0].ModRevision, nil
	}
	for _, key := range slices.Concat(done.Missing, done.Changed, done.Surplus) {
		resource, object, err := api.ObjectOf(key)
		if errors.Is(err, apiserver.ErrUnknownKey) {
			continue // this process has not served the type yet
		} else if err != nil {
			return changes, err
		}
		revision, err := revisionOf(key, done.Revision)
		if errors.Is(err, datastore.ErrCompacted) {
			revision, err = revisionOf(key, 0)
		}
		if err != nil {
			return changes, fmt.Errorf("find what the reset has changed: %w", err)
		}
		changes.Of[resource] = append(changes.Of[resource], sharedinformers.Change{Key: object, Revision: revision})
		if keys[resource] == nil {
			keys[resource] = map[string]string{}
		}
		keys[resource][object] = key
	}
	changes.Gone = func(resource schema.GroupResource, object string) bool {
		revision, err := revisionOf(keys[resource][object], 0)
		return err == nil && revision == 0
	}
	return changes, nil
}

// followers returns the informers that have to see changes.
func (s *controlPlane) followers(api *apiserver.Server, changes sharedinformers.Changes) ([]sharedinformers.Informer, error) {
	all, err := api.Followers()
	if err != nil {
		return nil, err
	}
	if s.controlling != nil {
		more, err := s.controlling.Followers(changes)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	if s.scheduling != nil {
		more, err := s.scheduling.Followers()
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all, nil
}
