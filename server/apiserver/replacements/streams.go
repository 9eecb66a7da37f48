package replacements

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/karve-k8s/karve/server/ports"
)

// These limit how long a stream continues once the server accepts no more requests.
//
// More time is of no use to a stream that has no end. A watch ends by itself at upstream's
// signal, unless it is proxied to an aggregated API server. At the same moment, upstream
// counts the watches, to end them at a limited rate. Anything else may be about to finish,
// such as a log that is not followed or a request proxied to a node, Pod or Service.
const (
	endlessPatience = 0
	watchPatience   = 250 * time.Millisecond
	finitePatience  = 900 * time.Millisecond

	// upgradePatience is how long a handler may take to end the protocol on a connection that
	// it has hijacked. Then the connection is closed.
	upgradePatience = 250 * time.Millisecond
	// streamsLimit is how long a stop waits for handlers when everything has been closed.
	streamsLimit = 5 * time.Second
)

// errShutdown is the cause with which a stop ends the context of a stream.
var errShutdown = errors.New("the server is shutting down")

// OpenRequests ends long-running requests when the server stops.
//
// Upstream ends only watches. A followed log delays http.Server.Shutdown by the minute that a
// request may take. Nothing waits for connections that a handler has hijacked (exec, attach,
// port-forward); they end with the process.
type OpenRequests struct {
	ending      context.Context // ends when the server accepts no more requests
	end         context.CancelFunc
	requests    requests
	none        func() <-chan struct{} // closed when no request is left; more are refused from then on
	connections *ports.Connections
}

// EndStreams makes the server of c end its streams when it begins to shut down.
func EndStreams(c *genericapiserver.Config) *OpenRequests {
	s := &OpenRequests{}
	s.ending, s.end = context.WithCancel(context.Background())
	s.requests = requests{open: map[*openRequest]struct{}{}, none: make(chan struct{})}
	s.none = sync.OnceValue(s.requests.close)
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return s.note(build(s.track(api, c.LongRunningFunc), c))
	}
	s.connections = ports.Track(c.SecureServing.Listener)
	// http.Server.Shutdown closes the listener first. Upstream calls Shutdown when
	// --shutdown-delay-duration has passed and the pre-shutdown hooks have run. With
	// --shutdown-send-retry-after, it calls Shutdown when other requests have drained.
	c.SecureServing.Listener = notifyingListener{s.connections, s.end}
	return s
}

type notifyingListener struct {
	net.Listener
	closing func()
}

// Close implements net.Listener.
func (l notifyingListener) Close() error {
	l.closing()
	return l.Listener.Close()
}

// track wraps next so that its long-running requests end when the server stops. It is the
// innermost filter, so the other filters see a request that ends normally.
func (s *OpenRequests) track(next http.Handler, longRunning request.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || r.Header["Upgrade"] == nil && !longRunning(r, info) {
			next.ServeHTTP(w, r)
			return
		}
		s.serve(next, w, r, info)
	})
}

func (s *OpenRequests) serve(next http.Handler, w http.ResponseWriter, r *http.Request, info *request.RequestInfo) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	patience := patienceWith(r, info)
	defer context.AfterFunc(s.ending, func() {
		time.AfterFunc(patience, func() {
			cancel(errShutdown)
			if r.Header["Upgrade"] != nil { // such a handler may ignore its context
				time.AfterFunc(upgradePatience, func() { ports.Close(ctx) })
			}
		})
	})()
	cut := func() bool { return errors.Is(context.Cause(ctx), errShutdown) }
	if patience == watchPatience {
		// The reverse proxy of an aggregated API aborts the response, which a client takes for
		// a broken connection. A watch, however, may end at any time.
		defer func() {
			if p := recover(); p != nil && (p != http.ErrAbortHandler || !cut()) { //nolint:errorlint // net/http compares it in the same way
				panic(p)
			}
		}()
	}
	next.ServeHTTP(w, r.WithContext(ctx))
	if patience == finitePatience && cut() {
		panic(http.ErrAbortHandler) // a truncated response must not look complete
	}
}

// patienceWith returns how long a request may continue when the server stops.
func patienceWith(r *http.Request, info *request.RequestInfo) time.Duration {
	switch {
	case info.Verb == "watch":
		return watchPatience
	case r.Header["Upgrade"] != nil:
		return endlessPatience
	case info.Subresource == "log":
		follow, values := false, r.URL.Query()["follow"]
		_ = runtime.Convert_Slice_string_To_bool(&values, &follow, nil) // never fails
		if follow {
			return endlessPatience
		}
	}
	return finitePatience
}

// Wait returns when no request is left, or an error if that takes too long. With a nil
// OpenRequests, it returns immediately.
func (s *OpenRequests) Wait() error {
	if s == nil {
		return nil
	}
	s.end()
	timer := time.NewTimer(streamsLimit)
	defer timer.Stop()
	select {
	case <-s.none():
		return nil
	case <-timer.C:
		return fmt.Errorf("requests were still running %v after the server had ended them", streamsLimit)
	}
}

// Finish closes the connections when no request is left, as [ports.Connections.Finish] does. Call it when those that are not
// long-running have ended. With a nil OpenRequests, it does nothing.
func (s *OpenRequests) Finish() {
	if s == nil {
		return
	}
	s.end()
	<-s.none()
	s.connections.Finish()
}
