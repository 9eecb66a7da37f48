package replacements

import (
	"context"
	"maps"
	"reflect"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/klog/v2"
)

// StartInformersHook is upstream's hook that starts the informers that all servers share.
// Upstream adds it to a server that does not have it yet.
const StartInformersHook = "generic-apiserver-start-informers"

const (
	// earlyLimit is how long the post-start hooks are delayed for informers that do not fill,
	// for example because the datastore is unreachable. After that, the hooks wait as they do
	// upstream.
	earlyLimit = 2 * time.Second
	// storagePoll is how often Fill checks whether the cache of a storage is filled.
	storagePoll = time.Millisecond
	// stopLimit is how long the pre-shutdown hook waits for the informers' watches to end, and
	// stopPoll is how often it checks. This takes about a millisecond. Each watch that is left
	// after the limit makes the stop five milliseconds longer.
	stopLimit = 100 * time.Millisecond
	stopPoll  = time.Millisecond
	// hooksLimit is how long the other pre-shutdown hooks may take. They write to storage. If
	// storage is unreachable, one of them waits for ever for a lock, which the renewal of the
	// server's lease holds while it retries (k8s.io/component-helpers apimachinery/lease, Stop
	// and backoffEnsureLease).
	hooksLimit = 5 * time.Second
)

// InformerFactory is the interface of all generated informer factories.
type InformerFactory interface {
	StartWithContext(ctx context.Context)
	WaitForCacheSync(stop <-chan struct{}) map[reflect.Type]bool
}

// Early starts the servers' informers as soon as the handlers exist, while the chain is being
// prepared to run. Upstream starts them in a post-start hook, at the same time as the other
// hooks. Most of those check whether the informers have synced, and check again after 100 ms.
// With Early, the first check succeeds.
//
// The informers send the same requests as upstream's do later, to the same handlers. Like
// upstream's, they stop after the pre-shutdown hooks, when no more requests are accepted.
// Until then, the server handles requests, and their authorization and admission read the
// informers.
type Early struct {
	ctx    context.Context
	cancel func()
	filled chan struct{} // closed once all informers have synced

	Factories []InformerFactory
	Requests  func() int   // the number of requests of this process in progress
	Hooks     func() error // runs the pre-shutdown hooks
}

// EndInformers replaces upstream's hook in first, the server whose hooks the others inherit. The hook starts the informers
// that have been added, and calls end when it ends.
func EndInformers(first *genericapiserver.Config, shared InformerFactory, end func()) error {
	return first.AddPostStartHook(StartInformersHook, func(hc genericapiserver.PostStartHookContext) error {
		context.AfterFunc(hc, end)
		shared.StartWithContext(hc)
		return nil
	})
}

// NewEarly returns an Early whose informers run until ctx ends, which cancel ends. An audit backend starts after the chain
// is prepared, and must see every request. So with one, the informers have to wait for the hook.
func NewEarly(ctx context.Context, cancel func()) *Early {
	return &Early{ctx: ctx, cancel: cancel, filled: make(chan struct{})}
}

// StopAfterHooks stops the informers when last has run its pre-shutdown hooks and delay has
// passed. This is just before upstream counts the open watches, which it ends at a rate of 200
// a second.
//
// Upstream runs the hooks in no particular order, so this hook has to be the only one of last.
// StopAfterHooks moves the others to other, a server further down the chain whose hooks
// nothing runs.
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
// limit, and does not report them as an error, because upstream would then skip what comes
// after the hooks.
func (e *Early) runHooks(limit time.Duration) error {
	done := make(chan error, 1)
	go func() { done <- e.Hooks() }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		klog.Warningf("Pre-shutdown hooks are still running after %v; the shutdown continues without them (is the datastore unreachable?)", limit)
		return nil
	}
}

// Filled returns a channel that is closed when all informers have synced.
func (e *Early) Filled() <-chan struct{} { return e.filled }

// Stopped returns a channel that is closed when the informers have been stopped.
func (e *Early) Stopped() <-chan struct{} { return e.ctx.Done() }

// Watches returns the number of running informers, each of which has a watch.
func (e *Early) Watches() (n int) {
	for _, f := range e.Factories {
		n += len(StartedTypes(f))
	}
	return n
}

// Fill starts the informers of the factories once the servers' storages can be watched. A
// watch of storage that is not ready would be refused and retried after a second.
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

// awaitStorage runs upstream's hook that waits for storage. The hook checks immediately and
// then every 100 ms. It does not report what it has found, so a short deadline ends each run
// after the first check.
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

// StartedTypes returns the types whose informers a factory has started.
func StartedTypes(f interface {
	WaitForCacheSync(stop <-chan struct{}) map[reflect.Type]bool
}) map[reflect.Type]bool {
	now := make(chan struct{})
	close(now)
	return f.WaitForCacheSync(now)
}
