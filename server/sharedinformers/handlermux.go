package sharedinformers

import (
	"slices"
	"sync"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
)

// handlerMux is one event handler that serves many others. Upstream's informer keeps two
// goroutines and a buffer for 1,024 notifications for each handler, and nearly all of two
// hundred handlers are idle nearly always. Here each handler has a queue, and a goroutine only
// while the queue is not empty. As with upstream, a handler is called for one event after the
// other, and waits for no other handler.
type handlerMux struct {
	mu       sync.Mutex
	handlers []*muxedHandler
	objects  map[string]any // by their keys, for handlers that join later
	complete bool           // objects has had every initial object
}

func newHandlerMux() *handlerMux { return &handlerMux{objects: map[string]any{}} }

func (m *handlerMux) OnAdd(object any, initial bool) {
	m.pass(object, func(h cache.ResourceEventHandler) { h.OnAdd(object, initial) }, true, false)
}

func (m *handlerMux) OnUpdate(old, object any) {
	// A resync passes the same object twice.
	m.pass(object, func(h cache.ResourceEventHandler) { h.OnUpdate(old, object) }, true, old == object)
}

func (m *handlerMux) OnDelete(object any) {
	m.pass(object, func(h cache.ResourceEventHandler) { h.OnDelete(object) }, false, false)
}

func (m *handlerMux) pass(object any, call func(cache.ResourceEventHandler), exists, resync bool) {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err != nil: // an informer stores no such object
	case exists:
		m.objects[key] = object
	default:
		delete(m.objects, key)
	}
	for _, one := range m.handlers {
		if !resync || one.resyncs {
			one.push(call)
		}
	}
}

// join adds a handler: it is called for every object there is, and for all later events.
func (m *handlerMux) join(one *muxedHandler) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, object := range m.objects {
		one.push(func(h cache.ResourceEventHandler) { h.OnAdd(object, true) })
	}
	if m.complete {
		one.push(one.isSynced)
	}
	m.handlers = append(m.handlers, one)
}

// leave removes a handler, and returns how many are left.
func (m *handlerMux) leave(one *muxedHandler) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.handlers = slices.DeleteFunc(m.handlers, func(o *muxedHandler) bool { return o == one })
	one.end()
	return len(m.handlers)
}

// synced is called when the mux has seen every initial object.
func (m *handlerMux) synced() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.complete = true
	for _, one := range m.handlers {
		one.push(one.isSynced)
	}
}

// muxedHandler is a handler that a mux serves.
type muxedHandler struct {
	handler cache.ResourceEventHandler
	resyncs bool
	synced  chan struct{} // closed when the handler has seen every initial object

	mu      sync.Mutex
	pending []func(cache.ResourceEventHandler)
	busy    bool // a goroutine empties pending
	ended   bool
}

func (h *muxedHandler) isSynced(cache.ResourceEventHandler) { close(h.synced) }

func (h *muxedHandler) push(call func(cache.ResourceEventHandler)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return
	}
	h.pending = append(h.pending, call)
	if !h.busy {
		h.busy = true
		go h.deliver()
	}
}

func (h *muxedHandler) deliver() {
	defer utilruntime.HandleCrash()
	for {
		calls := h.take()
		if calls == nil {
			return
		}
		for _, call := range calls {
			call(h.handler)
		}
	}
}

func (h *muxedHandler) take() []func(cache.ResourceEventHandler) {
	h.mu.Lock()
	defer h.mu.Unlock()
	calls := h.pending
	h.pending = nil
	h.busy = len(calls) > 0
	return calls
}

// end drops the events for which the handler has not been called.
func (h *muxedHandler) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended, h.pending = true, nil
}
