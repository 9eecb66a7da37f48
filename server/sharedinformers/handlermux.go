package sharedinformers

import (
	"slices"
	"sync"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
)

// relay is one handler of an informer for many. An informer keeps two goroutines and
// room for a thousand notifications for each handler it has, and of two hundred
// handlers nearly all rest nearly always. Here each has a queue, which a goroutine
// empties that ends when it has: as with the informer, a handler is called for one
// thing after the other, and waits for no other handler.
type relay struct {
	mu    sync.Mutex
	to    []*recipient
	known map[string]any // objects by their keys, for who joins later
	full  bool           // known has been every object there was
}

func newRelay() *relay { return &relay{known: map[string]any{}} }

func (r *relay) OnAdd(object any, initial bool) {
	r.pass(object, func(h cache.ResourceEventHandler) { h.OnAdd(object, initial) }, true, false)
}

func (r *relay) OnUpdate(old, object any) {
	// The object that is in the store already: nothing has changed, it is a resync.
	r.pass(object, func(h cache.ResourceEventHandler) { h.OnUpdate(old, object) }, true, old == object)
}

func (r *relay) OnDelete(object any) {
	r.pass(object, func(h cache.ResourceEventHandler) { h.OnDelete(object) }, false, false)
}

func (r *relay) pass(object any, call func(cache.ResourceEventHandler), exists, resync bool) {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil: // upstream's informer would not have it
	case exists:
		r.known[key] = object
	default:
		delete(r.known, key)
	}
	for _, one := range r.to {
		if !resync || one.resyncs {
			one.push(call)
		}
	}
}

// join tells a handler what there is, and from now on what happens.
func (r *relay) join(one *recipient) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, object := range r.known {
		one.push(func(h cache.ResourceEventHandler) { h.OnAdd(object, true) })
	}
	if r.full {
		one.push(one.isSynced)
	}
	r.to = append(r.to, one)
}

// leave answers how many are left.
func (r *relay) leave(one *recipient) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = slices.DeleteFunc(r.to, func(o *recipient) bool { return o == one })
	one.end()
	return len(r.to)
}

// synced is called when the relay has been told of every object there was.
func (r *relay) synced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.full = true
	for _, one := range r.to {
		one.push(one.isSynced)
	}
}

// recipient is a handler of a relay.
type recipient struct {
	handler cache.ResourceEventHandler
	resyncs bool
	synced  chan struct{} // closed when the handler has seen every object there was

	mu      sync.Mutex
	pending []func(cache.ResourceEventHandler)
	busy    bool // a goroutine empties pending
	ended   bool
}

func (r *recipient) isSynced(cache.ResourceEventHandler) { close(r.synced) }

func (r *recipient) push(call func(cache.ResourceEventHandler)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	r.pending = append(r.pending, call)
	if !r.busy {
		r.busy = true
		go r.deliver()
	}
}

func (r *recipient) deliver() {
	defer utilruntime.HandleCrash()
	for {
		calls := r.take()
		if calls == nil {
			return
		}
		for _, call := range calls {
			call(r.handler)
		}
	}
}

func (r *recipient) take() []func(cache.ResourceEventHandler) {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.pending
	r.pending = nil
	r.busy = len(calls) > 0
	return calls
}

// end forgets what the handler has not been told yet.
func (r *recipient) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended, r.pending = true, nil
}
