package replacements

import (
	"context"
	"maps"
	"reflect"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/klog/v2"
)

// StartInformersHook is upstream's hook that starts the informers all servers share.
// Upstream adds it to a server only where nobody has.
const StartInformersHook = "generic-apiserver-start-informers"

const (
	// earlyLimit is how long the post-start hooks are held back for informers that
	// don't fill: with storage gone, for example. Then hooks wait as upstream's do.
	earlyLimit = 2 * time.Second
	// storagePoll is how often a storage is asked whether its cache is filled.
	storagePoll = time.Millisecond
	// stopLimit is how long the pre-shutdown hook waits for the watches of the informers
	// to end, and stopPoll how often it looks. It takes about a millisecond; each watch
	// that is left after the limit makes the stop five milliseconds longer.
	stopLimit = 100 * time.Millisecond
	stopPoll  = time.Millisecond
	// hooksLimit is how long the other pre-shutdown hooks may take. They write to storage,
	// and without it one of them waits for ever: it wants a lock that the renewal of the
	// server's lease holds while it tries again (k8s.io/component-helpers
	// apimachinery/lease, Stop and backoffEnsureLease).
	hooksLimit = 5 * time.Second
)

// InformerFactory is what all generated informer factories have in common.
type InformerFactory interface {
	StartWithContext(ctx context.Context)
	WaitForCacheSync(stop <-chan struct{}) map[reflect.Type]bool
}

// Early starts the servers' informers as soon as the handlers are there,
// while the chain is prepared to run. Upstream starts them in a post-start hook,
// at the same moment as the other hooks, most of which look whether they have
// synced, and look again after 100 ms. These find them synced at their first look.
//
// They get a context that can be cancelled, where upstream's hook has a channel: of
// each context below one that stands for a channel, the standard library keeps a
// goroutine that waits for it, two for each informer.
//
// What the informers ask for is what they would ask for later, of the same
// handlers. They stop when no more requests are accepted, as upstream's do, after the
// pre-shutdown hooks: until then requests are served, whose authorization and admission
// read them.
type Early struct {
	ctx    context.Context
	cancel context.CancelFunc
	filled chan struct{} // closed once all have synced

	Factories []InformerFactory
	Requests  func() int   // how many requests of this process are under way
	Hooks     func() error // runs the pre-shutdown hooks
}

// StartEarly replaces upstream's hook in first, the server whose hooks the others
// take over. It returns nil where informers have to wait for it: an audit backend
// is run after the chain is prepared, and must see every request.
func StartEarly(ctx context.Context, first *genericapiserver.Config, shared InformerFactory) (*Early, error) {
	if first.AuditBackend != nil || first.DisabledPostStartHooks.Has(StartInformersHook) {
		return nil, nil
	}
	e := &Early{filled: make(chan struct{})}
	e.ctx, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
	err := first.AddPostStartHook(StartInformersHook, func(hc genericapiserver.PostStartHookContext) error {
		context.AfterFunc(hc, e.cancel)
		shared.StartWithContext(e.ctx) // what was added since
		return nil
	})
	return e, err
}

// StopAfterHooks stops the informers when last has run its pre-shutdown hooks and delay
// has passed, just before upstream counts the watches there are, which it lets go of at
// 200 a second.
//
// Upstream runs the hooks in no order, so this one has to be the only one: other, a
// server further down the chain whose hooks nobody runs, takes the rest.
func (e *Early) StopAfterHooks(last, other *genericapiserver.GenericAPIServer, delay time.Duration) error {
	maps.Copy(other.PreShutdownHooks(), last.PreShutdownHooks())
	clear(last.PreShutdownHooks())
	e.Hooks = other.RunPreShutdownHooks
	return last.AddPreShutdownHook("stop-informers", func() error {
		delayed := time.After(delay)
		err := e.runHooks(hooksLimit)
		<-delayed
		before := e.Requests()
		e.cancel()
		for end := time.Now().Add(stopLimit); e.Requests() > before-e.Watches() && time.Now().Before(end); {
			time.Sleep(stopPoll)
		}
		return err
	})
}

// runHooks runs the pre-shutdown hooks. It does not wait for those that take longer than
// limit: that is no error, with which upstream would skip what comes after the hooks.
func (e *Early) runHooks(limit time.Duration) error {
	done := make(chan error, 1)
	go func() { done <- e.Hooks() }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		klog.Warningf("Pre-shutdown hooks still run after %v; the shutdown goes on without them (is storage gone?)", limit)
		return nil
	}
}

// Filled is closed when all informers have synced.
func (e *Early) Filled() <-chan struct{} { return e.filled }

// Stopped is closed when the informers have been stopped.
func (e *Early) Stopped() <-chan struct{} { return e.ctx.Done() }

// Stop stops the informers. A nil Early has none.
func (e *Early) Stop() {
	if e != nil {
		e.cancel()
	}
}

// Watches is how many informers run, each of which has a watch.
func (e *Early) Watches() (n int) {
	for _, f := range e.Factories {
		n += len(StartedTypes(f))
	}
	return n
}

// Fill starts the informers of factories once the servers' storages can be watched
// (a watch of one that can't is refused, and tried again after a second).
func (e *Early) Fill(servers []*genericapiserver.GenericAPIServer) {
	for _, s := range servers {
		if !e.awaitStorage(s.StorageReadinessHook) {
			return
		}
	}
	for _, f := range e.Factories {
		f.StartWithContext(e.ctx)
	}
	for _, f := range e.Factories {
		f.WaitForCacheSync(e.ctx.Done())
	}
	close(e.filled)
}

// awaitStorage is upstream's hook of that purpose, which looks at once and then
// every 100 ms. It does not say what it has found; so each look is cut short.
func (e *Early) awaitStorage(ready *genericapiserver.StorageReadinessHook) bool {
	for e.ctx.Err() == nil {
		look, cancel := context.WithCancel(e.ctx)
		timer := time.AfterFunc(storagePoll, cancel)
		_ = ready.Hook(genericapiserver.PostStartHookContext{Context: look}) // never fails
		timer.Stop()
		found := look.Err() == nil
		cancel()
		if found {
			return true
		}
	}
	return false
}

// Wait returns when the informers have synced, after earlyLimit, or when ctx ends.
func (e *Early) Wait(ctx context.Context) {
	timer := time.NewTimer(earlyLimit)
	defer timer.Stop()
	select {
	case <-e.filled:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// StartedTypes are the types whose informers a factory has started.
func StartedTypes(f interface {
	WaitForCacheSync(stop <-chan struct{}) map[reflect.Type]bool
}) map[reflect.Type]bool {
	now := make(chan struct{})
	close(now)
	return f.WaitForCacheSync(now)
}
