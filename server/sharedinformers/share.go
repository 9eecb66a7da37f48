package sharedinformers

import (
	"context"
	"fmt"
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
)

// Share gives to the informers of from, in place of its own of these
// types, which must not have been made yet.
func Share(to, from informers.SharedInformerFactory, types ...runtime.Object) error {
	for _, object := range types {
		resource, err := resourceOf(object)
		if err != nil {
			return fmt.Errorf("share informers: %w", err)
		}
		generic, err := from.ForResource(resource)
		if err != nil {
			return fmt.Errorf("share informers: %w", err)
		}
		var theirs cache.SharedIndexInformer = &sharedInformer{SharedIndexInformer: generic.Informer()}
		ours := to.InformerFor(object, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer { return theirs })
		if ours != theirs {
			return fmt.Errorf("share informers: %s has been made already", resource.Resource)
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

// Multiplex gives to informers of its own for these types, which must not have
// been made yet, with one handler of upstream's for all handlers they get.
func Multiplex(to informers.SharedInformerFactory, types ...runtime.Object) error {
	for _, object := range types {
		resource, err := resourceOf(object)
		if err != nil {
			return fmt.Errorf("multiplex handlers of informers: %w", err)
		}
		var own *sharedInformer
		got := to.InformerFor(object, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
			var generic informers.GenericInformer
			factory := informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithInformerName(to.InformerName()))
			if generic, err = factory.ForResource(resource); err != nil {
				return nil
			}
			own = &sharedInformer{SharedIndexInformer: generic.Informer(), only: true}
			return own
		})
		if err != nil {
			return fmt.Errorf("multiplex handlers of informers: %w", err)
		}
		if got != own {
			return fmt.Errorf("multiplex handlers of informers: %s has been made already", resource.Resource)
		}
	}
	return nil
}

// sharedInformer is another factory's informer, as that of a factory which
// starts later: until it is run it calls no handler, as upstream's controllers
// rely on (many add theirs before they are complete), and afterwards it takes
// its handlers away again.
type sharedInformer struct {
	cache.SharedIndexInformer
	only bool // nobody else has it

	mu      sync.Mutex
	running <-chan struct{} // nil before the run, closed after it
	added   []*handlerRegistration
	relay   *relay                                 // nil if nobody needs one
	relayed cache.ResourceEventHandlerRegistration // the relay's
}

// handlerRegistration is the handle of a handler that was added before the run.
type handlerRegistration struct {
	recipient // if relayed: what is passed on to it
	relayed   bool
	options   cache.HandlerOptions

	registered chan struct{} // closed once real is set; never, if relayed
	real       cache.ResourceEventHandlerRegistration
}

// SetTransform does nothing for an informer that is shared: the owner's transform has
// been the same.
func (s *sharedInformer) SetTransform(transform cache.TransformFunc) error {
	if s.only {
		return s.SharedIndexInformer.SetTransform(transform)
	}
	return nil
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
	r := &handlerRegistration{recipient: recipient{handler: h, synced: make(chan struct{})}, options: options, registered: make(chan struct{})}
	if s.running != nil {
		if err := s.register(r); err != nil {
			return nil, err
		}
	}
	s.added = append(s.added, r)
	return r, nil
}

// longResync is a resync period that is as good as any other: the default is between
// 12 and 24 hours, at random.
const longResync = time.Hour

// relays tells whether a handler's resyncs are those of the relay, or none.
func (s *sharedInformer) relays(o cache.HandlerOptions) bool {
	return o.ResyncPeriod == nil || *o.ResyncPeriod == 0 || s.only && *o.ResyncPeriod >= longResync
}

func (s *sharedInformer) register(r *handlerRegistration) (err error) {
	if s.relays(r.options) {
		return s.join(r)
	}
	if r.real, err = s.SharedIndexInformer.AddEventHandlerWithOptions(r.handler, r.options); err != nil {
		return err
	}
	close(r.registered)
	s.whenSynced(r.real, func() { close(r.synced) })
	return nil
}

func (s *sharedInformer) join(r *handlerRegistration) (err error) {
	if s.relay == nil {
		relay := newRelay()
		if s.relayed, err = s.SharedIndexInformer.AddEventHandler(relay); err != nil {
			return err
		}
		s.relay = relay
		s.whenSynced(s.relayed, relay.synced)
	}
	r.relayed = true
	r.resyncs = r.options.ResyncPeriod == nil || *r.options.ResyncPeriod > 0
	s.relay.join(&r.recipient)
	return nil
}

// whenSynced does something once a handler of upstream's has been told of every object
// there was, if that is before the end of the run.
func (s *sharedInformer) whenSynced(real cache.ResourceEventHandlerRegistration, do func()) {
	stopped := s.running
	go func() {
		select {
		case <-real.HasSyncedChecker().Done():
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
		return nil // upstream's does not mind either
	}
	r := s.added[i]
	s.added = slices.Delete(s.added, i, i+1)
	return s.unregister(r)
}

func (s *sharedInformer) unregister(r *handlerRegistration) error {
	switch {
	case r.real != nil:
		return s.SharedIndexInformer.RemoveEventHandler(r.real)
	case r.relayed && s.relay.leave(&r.recipient) == 0:
		s.relay = nil // what it is told after this is of no use to another
		return s.SharedIndexInformer.RemoveEventHandler(s.relayed)
	}
	return nil
}

func (s *sharedInformer) Run(stop <-chan struct{}) { s.RunWithContext(wait.ContextForChannel(stop)) }

// RunWithContext lets the handlers be called until ctx ends. It also runs the
// owner's informer, if the owner has not.
func (s *sharedInformer) RunWithContext(ctx context.Context) {
	s.mu.Lock()
	if s.running != nil { // somebody shares this one, and was first
		s.mu.Unlock()
		return
	}
	s.running = ctx.Done()
	for _, r := range s.added {
		if err := s.register(r); err != nil { // it has stopped, and so will we
			klog.FromContext(ctx).Error(err, "Sharing an informer failed")
		}
	}
	s.mu.Unlock()
	context.AfterFunc(ctx, s.detach)
	s.SharedIndexInformer.RunWithContext(ctx) // returns at once if it runs
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
		return r.real.HasSynced()
	default:
		return false
	}
}

func (r *handlerRegistration) HasSyncedChecker() cache.DoneChecker { return handlerSynced{r} }

type handlerSynced struct{ *handlerRegistration }

func (handlerSynced) Name() string            { return "handler of a shared informer" }
func (h handlerSynced) Done() <-chan struct{} { return h.synced }
