package sharedinformers

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
)

// ErrLagging is wrapped by the error of [Wait] that names the informers which have not
// caught up.
var ErrLagging = errors.New("informers have not caught up")

// poll is how often Wait reads the stores.
const poll = time.Millisecond

// named is the number of informers, and of keys of each, that an error names.
const named = 5

// Informer is an informer that may have to catch up.
type Informer struct {
	Resource schema.GroupResource
	Informer cache.SharedIndexInformer
	// Of names its owner, for errors.
	Of string
	// Keeps reports whether an object passes the informer's selector; nil is every object.
	Keeps func(object any) bool
}

// Change is the state of an object after a write.
type Change struct {
	Key      string // in the informer's store: NAMESPACE/NAME, or NAME
	Revision int64  // of the write; 0: the object was deleted
}

// Changes are the objects that have changed in storage up to a revision.
type Changes struct {
	Revision int64
	Of       map[schema.GroupResource][]Change
	// Gone reports whether an object that was written has been deleted since; nil is never.
	Gone func(resource schema.GroupResource, key string) bool
}

// Of lists the informers that a generated factory has started. get is the factory's
// InformerFor.
func Of(whose string, types *runtime.Scheme, started map[reflect.Type]bool, get func(runtime.Object) cache.SharedIndexInformer) ([]Informer, error) {
	var all []Informer
	for t := range started {
		object, ok := reflect.New(t.Elem()).Interface().(runtime.Object)
		if !ok {
			return nil, fmt.Errorf("informers of %s: %v is not an API object", whose, t)
		}
		kinds, _, err := types.ObjectKinds(object)
		if err != nil {
			return nil, fmt.Errorf("informers of %s: %w", whose, err)
		}
		resource, _ := meta.UnsafeGuessKindToResource(kinds[0])
		all = append(all, Informer{Resource: resource.GroupResource(), Informer: get(object), Of: whose})
	}
	return all, nil
}

// Started lists the informers that a factory of client-go's types has started.
func Started(whose string, factory informers.SharedInformerFactory) ([]Informer, error) {
	now := make(chan struct{})
	close(now) // do not wait
	return Of(whose, scheme.Scheme, factory.WaitForCacheSync(now), func(o runtime.Object) cache.SharedIndexInformer {
		return factory.InformerFor(o, nil)
	})
}

// IsShared reports whether [Share] put i into its factory, so that i belongs to another
// factory.
func IsShared(i cache.SharedIndexInformer) bool {
	_, shared := i.(*sharedInformer)
	return shared
}

// Wait returns when every informer has seen the changes of its resource. If ctx ends before
// that, it returns an error that names the informers that have not. It does not wait for
// informers that have not filled their stores yet or have stopped, because nothing uses them.
func Wait(ctx context.Context, all []Informer, changes Changes) error {
	var waiting []*pending
	seen := map[cache.Store]bool{}
	for _, i := range all {
		if len(changes.Of[i.Resource]) == 0 || seen[i.Informer.GetStore()] || !i.Informer.HasSynced() {
			continue
		}
		seen[i.Informer.GetStore()] = true
		waiting = append(waiting, &pending{Informer: i, all: all, changes: changes.Of[i.Resource]})
	}
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		waiting = slices.DeleteFunc(waiting, func(p *pending) bool { return p.caughtUp(changes) })
		if len(waiting) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return lagging(waiting, changes.Revision)
		}
	}
}

// pending is an informer with the changes that it has not seen yet.
type pending struct {
	Informer
	all     []Informer
	changes []Change
}

func (p *pending) caughtUp(all Changes) bool {
	if p.Informer.Informer.IsStopped() {
		return true
	}
	for len(p.changes) > 0 && p.has(p.changes[0], all) {
		p.changes = p.changes[1:]
	}
	return len(p.changes) == 0
}

func (p *pending) has(c Change, all Changes) bool {
	_, revision, found := lookUp(p.Informer.Informer, c.Key)
	switch {
	case c.Revision == 0:
		return !found || revision > all.Revision // created again since
	case found:
		return revision >= c.Revision
	case p.filtered(c):
		return true
	}
	return all.Gone != nil && all.Gone(p.Resource, c.Key)
}

// filtered reports whether an object is missing because it does not pass the selector. An
// informer without a selector has the object.
func (p *pending) filtered(c Change) bool {
	if p.Keeps == nil {
		return false
	}
	for _, other := range p.all {
		if other.Resource != p.Resource || other.Keeps != nil {
			continue
		}
		if object, revision, found := lookUp(other.Informer, c.Key); found && revision >= c.Revision {
			return !p.Keeps(object)
		}
	}
	return false
}

func lookUp(i cache.SharedIndexInformer, key string) (object any, revision int64, found bool) {
	object, found, err := i.GetStore().GetByKey(key)
	if err != nil || !found {
		return nil, 0, false
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, 0, false
	}
	revision, _ = strconv.ParseInt(accessor.GetResourceVersion(), 10, 64) // 0: never new enough
	return object, revision, true
}

func lagging(waiting []*pending, revision int64) error {
	var names []string
	for _, p := range waiting[:min(len(waiting), named)] {
		var keys []string
		for _, c := range p.changes[:min(len(p.changes), named)] {
			keys = append(keys, c.Key)
		}
		names = append(names, fmt.Sprintf("%s of the %s (%s)", p.Resource, p.Of, strings.Join(keys, ", ")))
	}
	return fmt.Errorf("%w with revision %d: %s", ErrLagging, revision, strings.Join(names, "; "))
}
