package replacements

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// How long a stream goes on once the server accepts no more requests.
//
// A stream without an end of its own gains nothing from more time. A watch ends by
// itself at upstream's signal, unless it is passed on to an aggregated API server;
// upstream counts watches at the same moment, to end them at a limited rate. Anything
// else, a log that is not followed or a request passed on to a node, Pod or Service, may
// be about to finish.
const (
	endlessPatience = 0
	watchPatience   = 250 * time.Millisecond
	finitePatience  = 900 * time.Millisecond

	// upgradePatience is how long a handler may take to say goodbye over a connection
	// that it has taken over, before that is closed.
	upgradePatience = 250 * time.Millisecond
	// streamsLimit is how long a stop waits for the handlers of streams after that.
	streamsLimit = 5 * time.Second
)

// errShutdown is why the context of a stream ends when the server stops.
var errShutdown = errors.New("the server is shutting down")

// OpenStreams ends long-running requests when the server stops.
//
// Upstream ends watches only. A followed log keeps http.Server.Shutdown waiting for the
// minute that a request may take, and connections that a handler has taken over (exec,
// attach, port-forward) are not waited for at all: they end with the process.
type OpenStreams struct {
	ending  context.Context // ends when no request is accepted any more
	end     context.CancelFunc
	running sync.RWMutex // read-locked by each stream
}

// EndStreams makes c end its streams when its server begins to shut down.
func EndStreams(c *genericapiserver.Config) *OpenStreams {
	s := &OpenStreams{}
	s.ending, s.end = context.WithCancel(context.Background())
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return build(s.track(api, c.LongRunningFunc), c)
	}
	// http.Server.Shutdown closes the listener first. Upstream calls it when
	// --shutdown-delay-duration has passed and pre-shutdown hooks are done; with
	// --shutdown-send-retry-after, when other requests have drained.
	c.SecureServing.Listener = notifyingListener{c.SecureServing.Listener, s.end}
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

// track is next, whose long-running requests end with the server. It is the innermost of
// the filters: the others see a request that has come to its end.
func (s *OpenStreams) track(next http.Handler, longRunning request.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || r.Header["Upgrade"] == nil && !longRunning(r, info) {
			next.ServeHTTP(w, r)
			return
		}
		if !s.running.TryRLock() { // somebody waits for the streams there are
			http.Error(w, errShutdown.Error(), http.StatusServiceUnavailable)
			return
		}
		defer s.running.RUnlock()
		s.serve(next, w, r, info)
	})
}

func (s *OpenStreams) serve(next http.Handler, w http.ResponseWriter, r *http.Request, info *request.RequestInfo) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	patience := patienceWith(r, info)
	defer context.AfterFunc(s.ending, func() {
		time.AfterFunc(patience, func() { cancel(errShutdown) })
	})()
	cut := func() bool { return errors.Is(context.Cause(ctx), errShutdown) }
	if patience == watchPatience {
		// The reverse proxy of an aggregated API aborts the answer, which a client takes
		// for a broken connection. A watch may end at any time.
		defer func() {
			if p := recover(); p != nil && (p != http.ErrAbortHandler || !cut()) { //nolint:errorlint // net/http compares it, too
				panic(p)
			}
		}()
	}
	if _, ok := w.(http.Hijacker); ok {
		w = responsewriter.WrapForHTTP1Or2(&upgradable{ResponseWriter: w, ctx: ctx, cut: cut})
	}
	next.ServeHTTP(w, r.WithContext(ctx))
	if patience == finitePatience && cut() {
		panic(http.ErrAbortHandler) // what is missing must not look like the end
	}
}

// patienceWith is how long a request may go on when the server stops.
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

// Wait returns when no stream is left, or an error if that takes too long. A nil OpenStreams
// has none.
func (s *OpenStreams) Wait() error {
	if s == nil {
		return nil
	}
	s.end()
	gone := make(chan struct{})
	go func() {
		s.running.Lock()
		close(gone)
	}()
	timer := time.NewTimer(streamsLimit)
	defer timer.Stop()
	select {
	case <-gone:
		return nil
	case <-timer.C:
		return fmt.Errorf("long-running requests still run %v after they were told to end", streamsLimit)
	}
}

// upgradable is an answer whose connection is closed when the server stops, if a handler
// has taken it over: such a handler need not look at its context.
type upgradable struct {
	http.ResponseWriter
	ctx context.Context
	cut func() bool
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (u *upgradable) Unwrap() http.ResponseWriter { return u.ResponseWriter }

// Hijack implements http.Hijacker.
func (u *upgradable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := u.ResponseWriter.(http.Hijacker).Hijack()
	if err == nil {
		context.AfterFunc(u.ctx, func() {
			if u.cut() {
				time.AfterFunc(upgradePatience, func() { conn.Close() })
			}
		})
	}
	return conn, buffered, err
}
