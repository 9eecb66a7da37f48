package replacements

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/karve-k8s/karve/server/ports"
)

// requests are those in flight, by whichever way they have come.
type requests struct {
	mu     sync.Mutex
	open   map[*openRequest]struct{}
	none   chan struct{} // closed once nothing is open and nothing more is accepted
	closed bool
}

// openRequest is a request in flight. It has copies, because filters change the request.
type openRequest struct {
	method, path, client, agent string
	context                     context.Context
	began                       time.Duration
	reading, writing            atomic.Int64 // since when the handler has waited for the client; 0: it does not
	told, cut                   bool
}

// String says whose request it is, without what may be a secret.
func (o *openRequest) String() string {
	return fmt.Sprintf("%s %q of %s (%.80q)", o.method, o.path, cmp.Or(strings.Trim(o.client, "@"), "a local client"), o.agent)
}

var start = time.Now()

// now is the time since start, and not 0.
func now() time.Duration { return time.Since(start) + 1 }

// note wraps next, the outermost filter, so that its requests are known while they are in flight.
func (s *OpenRequests) note(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o := &openRequest{method: r.Method, path: r.URL.Path, client: r.RemoteAddr, agent: r.UserAgent(), context: r.Context(), began: now()}
		if !s.requests.add(o) { // Wait waits for them
			http.Error(w, errShutdown.Error(), http.StatusServiceUnavailable)
			return
		}
		defer s.requests.remove(o)
		upgrade := r.Header["Upgrade"] != nil
		if r.ContentLength != 0 && r.Body != nil {
			r.Body = upload{r.Body, o}
		}
		wrapped := responsewriter.WrapForHTTP1Or2(download{w, o})
		next.ServeHTTP(wrapped, r)
		if flusher, ok := wrapped.(http.Flusher); ok && s.ending.Err() != nil && !upgrade {
			flusher.Flush() // net/http would write it later, when the connection may end because no request is left
		}
	})
}

// download is a response that knows whether it waits for the client.
type download struct {
	http.ResponseWriter
	of *openRequest
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (d download) Unwrap() http.ResponseWriter { return d.ResponseWriter }

// Write implements http.ResponseWriter. It writes in pieces, so that a client counts as slow, and not as still, if it takes one.
func (d download) Write(p []byte) (n int, err error) {
	defer d.of.writing.Store(0)
	for first := true; err == nil && (first || n < len(p)); first = false {
		d.of.writing.Store(int64(now()))
		var done int
		done, err = d.ResponseWriter.Write(p[n:min(len(p), n+listBufferSize)])
		n += done
	}
	return n, err
}

// Flush implements http.Flusher.
func (d download) Flush() {
	d.of.writing.Store(int64(now()))
	defer d.of.writing.Store(0)
	d.ResponseWriter.(http.Flusher).Flush() // WrapForHTTP1Or2 has looked
}

// upload is a request's body that knows whether it waits for the client.
type upload struct {
	io.ReadCloser
	of *openRequest
}

// Read implements io.Reader.
func (u upload) Read(p []byte) (int, error) {
	u.of.reading.Store(int64(now()))
	defer u.of.reading.Store(0)
	return u.ReadCloser.Read(p)
}

func (r *requests) add(o *openRequest) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.open[o] = struct{}{}
	}
	return !r.closed
}

func (r *requests) remove(o *openRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, o)
	r.end()
}

// end closes none if that is due.
func (r *requests) end() {
	if r.closed && len(r.open) == 0 && r.none != nil {
		close(r.none)
		r.none = nil
	}
}

// close accepts no more requests, and returns a channel that is closed when none is left.
func (r *requests) close() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	none := r.none
	r.closed = true
	r.end()
	return none
}

// Await lets a server that stops wait for its requests, until ctx ends. These have the time that upstream gives them. But a client that
// stands still, or is so slow that one write or read waits for patience, is cut off. Await logs who that was, and once for whom else
// it waits. With a nil OpenRequests, it does nothing.
func (s *OpenRequests) Await(ctx context.Context, patience time.Duration, log *logrus.Logger) {
	if s == nil {
		return
	}
	tick := time.NewTicker(patience / 10)
	defer tick.Stop()
	for began := now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now()-began < patience {
			continue
		}
		cut, waiting := s.requests.late(now() - patience)
		if len(cut) > 0 {
			log.Warnf("the stop cuts off clients for which a write or read has waited for %v, because they stand still or are very slow: %s", patience, strings.Join(cut, "; "))
		}
		if len(waiting) > 0 {
			log.Infof("the stop waits for requests: %s", strings.Join(waiting, "; "))
		}
	}
}

// late closes the connections of requests that have waited for their client since limit. It returns these, and others that began before
// limit; each once.
func (r *requests) late(limit time.Duration) (cut, waiting []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	late := func(since int64) bool { return since != 0 && time.Duration(since) <= limit }
	for o := range r.open {
		switch {
		case !o.cut && (late(o.reading.Load()) || late(o.writing.Load())):
			o.cut, o.told = true, true
			cut = append(cut, o.String())
			ports.Close(o.context)
		case !o.told && o.began <= limit:
			o.told = true
			waiting = append(waiting, o.String())
		}
	}
	return cut, waiting
}
