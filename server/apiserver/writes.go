package apiserver

import (
	"context"
	"net/http"
	"sync"

	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// writes are the requests under way that may make an object, by the namespace.
//
// Admission lets a request into a namespace some time before its object is in storage, and
// a stalled commit or body makes that time as long as a request may take. Who empties a
// namespace waits for them, instead of for a time that is long enough nearly always.
type writes struct {
	mu sync.Mutex
	of map[string]map[*write]struct{}
}

// write is one; done is nil unless somebody waits for it.
type write struct{ done chan struct{} }

// countWrites makes c count them, before admission looks at them and until storage has
// answered. It is the innermost of the filters: that of timeouts answers earlier.
func countWrites(c *genericapiserver.Config) *writes {
	all := &writes{of: map[string]map[*write]struct{}{}}
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return build(all.count(api, c.LongRunningFunc), c)
	}
	return all
}

func (a *writes) count(next http.Handler, longRunning request.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || info.Namespace == "" || !makesObjects(info.Verb) || longRunning(r, info) {
			next.ServeHTTP(w, r)
			return
		}
		defer a.begin(info.Namespace)()
		next.ServeHTTP(w, r)
	})
}

// makesObjects tells whether a verb may: an update and a server-side apply do, too.
func makesObjects(verb string) bool {
	return verb == "create" || verb == "update" || verb == "patch"
}

func (a *writes) begin(namespace string) (end func()) {
	w := &write{}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of[namespace] == nil {
		a.of[namespace] = map[*write]struct{}{}
	}
	a.of[namespace][w] = struct{}{}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.of[namespace], w)
		if len(a.of[namespace]) == 0 {
			delete(a.of, namespace)
		}
		if w.done != nil {
			close(w.done)
		}
	}
}

// await returns when those that are under way now have ended, or why ctx has.
func (a *writes) await(ctx context.Context, namespace string) error {
	a.mu.Lock()
	var all []chan struct{}
	for w := range a.of[namespace] {
		if w.done == nil {
			w.done = make(chan struct{})
		}
		all = append(all, w.done)
	}
	a.mu.Unlock()
	for _, done := range all {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// AwaitWrites returns when the requests that may make an object in a namespace, and are
// under way now, have ended: those from the secure and the insecure port, and from this
// process, for built-in and custom resources. What other API servers store is not known.
// A request whose client has gone may still be on its way through storage.
func (s *Server) AwaitWrites(ctx context.Context, namespace string) error {
	return s.writes.await(ctx, namespace)
}
