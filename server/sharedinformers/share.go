package sharedinformers

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/karve-k8s/karve/server/deviations"
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

// Share makes the factory to use the informers of from for these types. to must not have made
// informers of its own for them.
//
// With [deviations.SharedInformers] off, it does nothing. With [deviations.HandlerMux] off,
// each handler has a listener of upstream's.
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
		var theirs cache.SharedIndexInformer = &sharedInformer{SharedIndexInformer: generic.Informer(), multiplex: switches.On(deviations.HandlerMux)}
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

// Multiplex makes the informers that the factory to has for these types serve all their event
// handlers with a [handlerMux]. to must not have made them yet.
//
// With [deviations.HandlerMux] off, it does nothing.
func Multiplex(to informers.SharedInformerFactory, switches deviations.Switches, types ...runtime.Object) error {
	if !switches.On(deviations.HandlerMux) {
		return nil
	}
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
			own = &sharedInformer{SharedIndexInformer: generic.Informer(), multiplex: true, only: true}
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

// sharedInformer is an informer of another factory that behaves like one of a factory which
// starts later. It calls no handler before it runs: many of upstream's controllers add their
// handlers before they are complete. When its run ends, it removes its handlers.
type sharedInformer struct {
	cache.SharedIndexInformer
	multiplex bool // a handlerMux serves its handlers
	only      bool // no other factory has it

	mu      sync.Mutex
	running <-chan struct{} // nil before the run, closed after it
	added   []*handlerRegistration
	mux     *handlerMux                            // nil if it has no handlers
	muxed   cache.ResourceEventHandlerRegistration // of mux
}

// handlerRegistration is what AddEventHandler returns.
type handlerRegistration struct {
	muxedHandler // if isMuxed
	isMuxed      bool
	options      cache.HandlerOptions

	registered chan struct{} // closed once upstreams is set; never, if isMuxed
	upstreams  cache.ResourceEventHandlerRegistration
}

// SetTransform does nothing if the informer is shared: the owner has set the same transform.
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
	r := &handlerRegistration{muxedHandler: muxedHandler{handler: h, synced: make(chan struct{})}, options: options, registered: make(chan struct{})}
	if s.running != nil {
		if err := s.register(r); err != nil {
			return nil, err
		}
	}
	s.added = append(s.added, r)
	return r, nil
}

// longResync is the shortest resync period that need not be kept exactly. Upstream's default
// is a random one of 12 to 24 hours.
const longResync = time.Hour

// muxes reports whether the mux can serve a handler: the handler wants the informer's resyncs,
// or none.
func (s *sharedInformer) muxes(o cache.HandlerOptions) bool {
	return s.multiplex && (o.ResyncPeriod == nil || *o.ResyncPeriod == 0 || s.only && *o.ResyncPeriod >= longResync)
}

func (s *sharedInformer) register(r *handlerRegistration) (err error) {
	if s.muxes(r.options) {
		return s.join(r)
	}
	if r.upstreams, err = s.SharedIndexInformer.AddEventHandlerWithOptions(r.handler, r.options); err != nil {
		return err
	}
	close(r.registered)
	s.whenSynced(r.upstreams, func() { close(r.synced) })
	return nil
}

func (s *sharedInformer) join(r *handlerRegistration) (err error) {
	if s.mux == nil {
		mux := newHandlerMux()
		if s.muxed, err = s.SharedIndexInformer.AddEventHandler(mux); err != nil {
			return err
		}
		s.mux = mux
		s.whenSynced(s.muxed, mux.synced)
	}
	r.isMuxed = true
	r.resyncs = r.options.ResyncPeriod == nil || *r.options.ResyncPeriod > 0
	s.mux.join(&r.muxedHandler)
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
	switch {
	case r.upstreams != nil:
		return s.SharedIndexInformer.RemoveEventHandler(r.upstreams)
	case r.isMuxed && s.mux.leave(&r.muxedHandler) == 0:
		s.mux = nil // it sees no more events, so it cannot serve another handler
		return s.SharedIndexInformer.RemoveEventHandler(s.muxed)
	}
	return nil
}

func (s *sharedInformer) Run(stop <-chan struct{}) { s.RunWithContext(wait.ContextForChannel(stop)) }

// RunWithContext calls the handlers until ctx ends. It also runs the owner's informer, unless
// the owner has started it.
func (s *sharedInformer) RunWithContext(ctx context.Context) {
	s.mu.Lock()
	if s.running != nil { // another factory shares this one, and started it first
		s.mu.Unlock()
		return
	}
	s.running = ctx.Done()
	for _, r := range s.added {
		if err := s.register(r); err != nil { // the informer has stopped; so does this one
			klog.FromContext(ctx).Error(err, "Sharing an informer failed")
		}
	}
	s.mu.Unlock()
	context.AfterFunc(ctx, s.detach)
	s.SharedIndexInformer.RunWithContext(ctx) // returns immediately if it runs
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
