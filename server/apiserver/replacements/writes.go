package replacements

import (
	"io"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// writesMargin is how long a handler may take, after the deadline of its request, to return
// and to leave the engine what it has begun to write.
const writesMargin = 5 * time.Second

// Writes are the requests in progress that may create an object, by namespace.
//
// Admission lets a request into a namespace some time before its object is in storage. A
// stalled commit makes that time as long as a request may take. What empties a namespace waits
// for these requests, because no fixed delay is long enough.
type Writes struct {
	limit time.Duration // no handler works longer

	mu sync.Mutex
	of map[string]map[*write]struct{}
}

// write is one request. It counts from when its body has been read to the end. Upstream's
// handlers read the whole body before they call admission (limitedReadBody in
// k8s.io/apiserver/pkg/endpoints/handlers), so a request whose body is incomplete has not been
// admitted. It must not count, because no timeout ends a blocked read.
type write struct {
	all       *Writes
	namespace string

	// Writes.mu guards these:
	begun, ended bool
	awaited      []*barrier
}

// barrier is a set of requests that a caller waits for. Writes.mu guards it.
type barrier struct {
	left  int
	done  chan struct{} // nil once closed
	limit *time.Timer
}

// CountWrites makes c count the requests, from before admission until storage has answered. It
// is the innermost filter, because the timeout filter returns earlier.
func CountWrites(c *genericapiserver.Config) *Writes {
	all := newWrites(c.RequestTimeout + writesMargin)
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return build(all.count(api, c.LongRunningFunc), c)
	}
	return all
}

func newWrites(limit time.Duration) *Writes {
	return &Writes{limit: limit, of: map[string]map[*write]struct{}{}}
}

func (a *Writes) count(next http.Handler, longRunning request.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || info.Namespace == "" || !makesObjects(info.Verb) || longRunning(r, info) {
			next.ServeHTTP(w, r)
			return
		}
		counted := &write{all: a, namespace: info.Namespace}
		defer counted.end()
		if r.Body == nil || r.Body == http.NoBody {
			counted.begin()
		} else {
			r = r.WithContext(r.Context()) // a copy, so that the caller's request keeps its body
			r.Body = &countedBody{r.Body, counted}
		}
		next.ServeHTTP(w, r)
	})
}

// makesObjects reports whether a verb may create an object. An update or a server-side apply
// may do so too.
func makesObjects(verb string) bool {
	return verb == "create" || verb == "update" || verb == "patch"
}

// countedBody is a request body. It counts the request before its reader sees the end. A
// reader that stops earlier has reached the size limit and refuses the request.
type countedBody struct {
	io.ReadCloser
	write *write
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.write.begin()
	}
	return n, err
}

// begin counts the request, once. It does not count it if its handler has returned, because a
// proxy's transport may still read the body then.
func (w *write) begin() {
	a := w.all
	a.mu.Lock()
	defer a.mu.Unlock()
	if w.begun || w.ended {
		return
	}
	w.begun = true
	if a.of[w.namespace] == nil {
		a.of[w.namespace] = map[*write]struct{}{}
	}
	a.of[w.namespace][w] = struct{}{}
}

func (w *write) end() {
	a := w.all
	a.mu.Lock()
	defer a.mu.Unlock()
	w.ended = true
	if !w.begun {
		return
	}
	delete(a.of[w.namespace], w)
	if len(a.of[w.namespace]) == 0 {
		delete(a.of, w.namespace)
	}
	for _, b := range w.awaited {
		if b.left--; b.left == 0 {
			b.lift()
		}
	}
}

// The caller of lift must hold Writes.mu.
func (b *barrier) lift() {
	if b.done != nil {
		b.limit.Stop()
		close(b.done)
		b.done = nil
	}
}

// Barrier returns a channel that is closed when the requests that are in progress now have
// ended or passed their deadline.
func (a *Writes) Barrier(namespace string) <-chan struct{} {
	done := make(chan struct{})
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.of[namespace]
	if len(all) == 0 {
		close(done)
		return done
	}
	b := &barrier{left: len(all), done: done}
	for w := range all {
		w.awaited = append(w.awaited, b)
	}
	b.limit = time.AfterFunc(a.limit, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		b.lift()
	})
	return done
}
