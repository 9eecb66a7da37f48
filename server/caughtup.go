package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/informed"
)

// awaitInformers returns when the informers of this process have seen what a reset has
// changed: those of the API server, which simulated nodes share, of the controllers, with
// the metadata that the garbage collector keeps of custom resources, and of the scheduler.
//
// That their handlers have been called as well cannot be known while workers rest: a
// handler that adds to a queue waits for the worker that waits there. Controllers decide
// by what their informers have; what a handler adds only makes them look again.
func (s *controlPlane) awaitInformers(ctx context.Context, engine *datastore.Engine, done *datastore.ResetResult) error {
	api := s.api.Load()
	changes, err := changesOf(ctx, api, engine, done)
	if err != nil {
		return err
	}
	all, err := s.followers(api, changes)
	if err != nil {
		return err
	}
	return informed.Wait(ctx, all, changes)
}

// forgetAbsent makes the controllers forget that objects are gone for good.
func (s *controlPlane) forgetAbsent() {
	if s.controllers.graph != nil {
		rememberNoAbsentOwners(s.controllers.graph)
	}
}

// changesOf are the objects that a reset has changed, as storage has them.
func changesOf(ctx context.Context, api *apiserver.Server, engine *datastore.Engine, done *datastore.ResetResult) (informed.Changes, error) {
	changes := informed.Changes{Revision: done.Revision, Of: map[schema.GroupResource][]informed.Change{}}
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
			continue // nobody in this process has asked for it yet
		} else if err != nil {
			return changes, err
		}
		revision, err := revisionOf(key, done.Revision)
		if errors.Is(err, datastore.ErrCompacted) {
			revision, err = revisionOf(key, 0)
		}
		if err != nil {
			return changes, fmt.Errorf("look for what the reset has changed: %w", err)
		}
		changes.Of[resource] = append(changes.Of[resource], informed.Change{Key: object, Revision: revision})
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

// followers are the informers that have to see changes.
func (s *controlPlane) followers(api *apiserver.Server, changes informed.Changes) ([]informed.Informer, error) {
	all, err := api.Followers()
	if err != nil {
		return nil, err
	}
	for _, part := range []interface {
		followers(informed.Changes) ([]informed.Informer, error)
	}{&s.controllers, &s.scheduler} {
		more, err := part.followers(changes)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all, nil
}

func (c *controllers) followers(changes informed.Changes) ([]informed.Informer, error) {
	if c.shared == nil {
		return nil, nil // left out
	}
	const whose = "controllers"
	all, err := followersOf(whose, c.shared)
	if err != nil || c.collected == nil {
		return all, err
	}
	// What becomes of an informer of custom resources whose definition has changed is
	// the garbage collector's affair; it asks the API server before it deletes.
	redefined := changes.Of[apiextensions.Resource("customresourcedefinitions")]
	for resource := range changes.Of {
		custom := strings.Contains(resource.Group, ".") && !scheme.Scheme.IsGroupRegistered(resource.Group)
		if !custom || slices.ContainsFunc(redefined, func(r informed.Change) bool { return r.Key == resource.String() }) {
			continue
		}
		preferred, err := c.mapper.ResourceFor(resource.WithVersion(""))
		if err != nil {
			continue // so is one of a kind that is not discovered yet
		}
		generic, err := c.collected.ForResource(preferred)
		if err != nil {
			return nil, err
		}
		all = append(all, informed.Informer{Resource: resource, Informer: generic.Informer(), Of: whose})
	}
	return all, nil
}

func (s *theScheduler) followers(informed.Changes) ([]informed.Informer, error) {
	if s.informers == nil {
		return nil, nil
	}
	all, err := followersOf("scheduler", s.informers)
	for i := range all {
		// scheduler.NewInformerFactory asks for those that have not ended.
		if _, pods := all[i].Informer.(*sharedInformer); !pods && all[i].Resource == corev1.Resource("pods") {
			all[i].Keeps = hasNotEnded
		}
	}
	return all, err
}

func hasNotEnded(object any) bool {
	pod, ok := object.(*corev1.Pod)
	return !ok || pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// followersOf are the informers of a factory that has been started.
func followersOf(whose string, factory informers.SharedInformerFactory) ([]informed.Informer, error) {
	now := make(chan struct{})
	close(now)
	return informed.Of(whose, scheme.Scheme, factory.WaitForCacheSync(now), func(o runtime.Object) cache.SharedIndexInformer {
		return factory.InformerFor(o, nil)
	})
}
