// Package sharedinformers lets the API server, the controllers and the scheduler of one
// process use the same informers.
package sharedinformers

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/karve-k8s/karve/server/deviations"
)

// Resync is how often the API server's informers resync. No handler of a shared informer resyncs more often.
const Resync = 10 * time.Minute

// Lasting is a factory that several parts of the process use. Its informers run until its own context ends, whoever
// starts them: one that has stopped cannot start again, and a part may fail and begin again.
type Lasting struct {
	informers.SharedInformerFactory
	life context.Context
}

// Last makes f a factory whose informers run until life ends.
func Last(f informers.SharedInformerFactory, life context.Context) Lasting { return Lasting{f, life} }

// Start starts the informers that have been added, until the factory's own context ends.
func (l Lasting) Start(<-chan struct{}) { l.SharedInformerFactory.StartWithContext(l.life) }

// StartWithContext is Start.
func (l Lasting) StartWithContext(context.Context) { l.SharedInformerFactory.StartWithContext(l.life) }

// Share makes the factory to use the informers of the factory from for these types, with its own resync. It fails
// if to already has informers for them.
//
// With [deviations.SharedInformers] off, it does nothing.
func Share(to, from informers.SharedInformerFactory, switches deviations.Switches, types ...runtime.Object) error {
	if !switches.On(deviations.SharedInformers) {
		return nil
	}
	for _, object := range types {
		resource, err := resourceOf(object)
		if err != nil {
			return fmt.Errorf("share informers: %w", err)
		}
		generic, err := from.ForResource(resource)
		if err != nil {
			return fmt.Errorf("share informers: %w", err)
		}
		var theirs cache.SharedIndexInformer
		ours := to.InformerFor(object, func(_ kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
			theirs = &sharedInformer{SharedIndexInformer: generic.Informer(), resync: resync}
			return theirs
		})
		if ours != theirs {
			return fmt.Errorf("share informers: the factory already has an informer for %s", resource.Resource)
		}
	}
	return nil
}

func resourceOf(object runtime.Object) (schema.GroupVersionResource, error) {
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		return schema.GroupVersionResource{}, err
	}
	resource, _ := meta.UnsafeGuessKindToResource(kinds[0])
	return resource, nil
}

// sharedInformer is an informer of another factory that behaves like one of a factory that
// starts later. It calls no handler before it runs, because many of upstream's controllers add
// their handlers before they are complete. When its run ends, it removes its handlers.
type sharedInformer struct {
	cache.SharedIndexInformer
	resync time.Duration // of handlers without their own

	mu      sync.Mutex
	running <-chan struct{} // nil before the run, closed after it
	added   []*handlerRegistration
}

// handlerRegistration is what AddEventHandler returns.
type handlerRegistration struct {
	handler cache.ResourceEventHandler
	options cache.HandlerOptions
	synced  chan struct{} // closed once the handler has seen every initial object

	registered chan struct{} // closed once upstreams is set
	upstreams  cache.ResourceEventHandlerRegistration
}

// SetTransform does nothing: the owner has set the same transform.
func (*sharedInformer) SetTransform(cache.TransformFunc) error { return nil }

// AddIndexers adds indexes to the owner's store.
func (s *sharedInformer) AddIndexers(more cache.Indexers) error {
	return addIndexers(s.GetIndexer(), s.SharedIndexInformer.AddIndexers, more)
}

func (s *sharedInformer) GetIndexer() cache.Indexer {
	return sharedIndexer{s.SharedIndexInformer.GetIndexer()}
}

// sharedIndexer is the store of a shared informer.
type sharedIndexer struct{ cache.Indexer }

func (s sharedIndexer) AddIndexers(more cache.Indexers) error {
	return addIndexers(s.Indexer, s.Indexer.AddIndexers, more)
}

// addIndexers calls add for the indexes that store does not have. An index stays in the owner's store
// when those who use it end. If they start again, as controllers do when this server leads again, they
// find the same function there. Another function with the same name is a conflict.
func addIndexers(store cache.Indexer, add func(cache.Indexers) error, more cache.Indexers) error {
	has, missing := store.GetIndexers(), cache.Indexers{}
	for name, index := range more {
		if old, ok := has[name]; !ok || reflect.ValueOf(old).Pointer() != reflect.ValueOf(index).Pointer() {
			missing[name] = index
		}
	}
	return add(missing)
}

func (s *sharedInformer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return s.AddEventHandlerWithOptions(h, cache.HandlerOptions{})
}

func (s *sharedInformer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, every time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return s.AddEventHandlerWithOptions(h, cache.HandlerOptions{ResyncPeriod: &every})
}

func (s *sharedInformer) AddEventHandlerWithOptions(h cache.ResourceEventHandler, options cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if options.ResyncPeriod == nil {
		options.ResyncPeriod = &s.resync
	}
	r := &handlerRegistration{handler: h, options: options, synced: make(chan struct{}), registered: make(chan struct{})}
	if s.running != nil {
		if err := s.register(r); err != nil {
			return nil, err
		}
	}
	s.added = append(s.added, r)
	return r, nil
}

func (s *sharedInformer) register(r *handlerRegistration) (err error) {
	if r.upstreams, err = s.SharedIndexInformer.AddEventHandlerWithOptions(r.handler, r.options); err != nil {
		return err
	}
	close(r.registered)
	s.whenSynced(r.upstreams, func() { close(r.synced) })
	return nil
}

// whenSynced calls do once the handler of registration has seen every initial object, unless the
// run ends before.
func (s *sharedInformer) whenSynced(registration cache.ResourceEventHandlerRegistration, do func()) {
	stopped := s.running
	go func() {
		select {
		case <-registration.HasSyncedChecker().Done():
			do()
		case <-stopped:
		}
	}()
}

func (s *sharedInformer) RemoveEventHandler(handle cache.ResourceEventHandlerRegistration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.added, func(r *handlerRegistration) bool { return r == handle })
	if i < 0 {
		return nil // upstream returns no error either
	}
	r := s.added[i]
	s.added = slices.Delete(s.added, i, i+1)
	return s.unregister(r)
}

func (s *sharedInformer) unregister(r *handlerRegistration) error {
	if r.upstreams == nil {
		return nil
	}
	return s.SharedIndexInformer.RemoveEventHandler(r.upstreams)
}

func (s *sharedInformer) Run(stop <-chan struct{}) { s.RunWithContext(wait.ContextForChannel(stop)) }

// RunWithContext calls the handlers until ctx ends. The owner runs the informer.
func (s *sharedInformer) RunWithContext(ctx context.Context) {
	s.mu.Lock()
	if s.running != nil { // another factory that shares this informer has started it
		s.mu.Unlock()
		return
	}
	s.running = ctx.Done()
	for _, r := range s.added {
		if err := s.register(r); err != nil { // the owner's informer has stopped
			klog.FromContext(ctx).Error(err, "Sharing an informer failed")
		}
	}
	s.mu.Unlock()
	context.AfterFunc(ctx, s.detach)
}

func (s *sharedInformer) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.added {
		_ = s.unregister(r) // can't fail
	}
	s.added = nil
}

func (r *handlerRegistration) HasSynced() bool {
	select {
	case <-r.synced:
		return true
	case <-r.registered:
		return r.upstreams.HasSynced()
	default:
		return false
	}
}

func (r *handlerRegistration) HasSyncedChecker() cache.DoneChecker { return handlerSynced{r} }

type handlerSynced struct{ *handlerRegistration }

func (handlerSynced) Name() string            { return "handler of a shared informer" }
func (h handlerSynced) Done() <-chan struct{} { return h.synced }

// Name reserves the name of a component, under which client-go publishes the metrics of its
// informers (informer_queued_items and others, k8s.io/client-go tools/cache/identity.go).
// The component releases it when its informers have stopped.
//
// Name returns nil, with which there are no metrics, if another server of this process has the
// name.
func Name(component string) *cache.InformerName {
	name, err := cache.NewInformerName(component)
	if err != nil {
		return nil
	}
	return name
}
