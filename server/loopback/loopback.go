// Package loopback carries HTTP requests to a handler of the same process
// without a connection: no TCP, no TLS, no framing, nothing to keep alive.
//
// A [Server] is the handler's side, a [Transport] the client's. Handler and client see what
// they would see over HTTP/2: bodies stream both ways, a slow reader delays the writer, the
// end of either side cancels the other, and a panic is a broken connection. The client's
// identity is in the certificates of the request's TLS state, or in a header such as a
// bearer token. The handler authenticates both as usual.
//
// Upgrades (exec, port-forward) go to Transport.Upgrade, because there is no connection to
// take over. Trailers and informational (1xx)
// answers are dropped.
package loopback

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/karve-k8s/karve/internal/fence"
)

// Address is the address from which handlers see a request come.
const Address = "127.0.0.1:0"

var (
	// ErrRefused is returned for requests to a closed server. It is ECONNREFUSED for
	// errors.Is.
	ErrRefused = fmt.Errorf("loopback server is closed: %w", syscall.ECONNREFUSED)
	// ErrReset is returned if the handler ends before there is an answer. It is ECONNRESET for
	// errors.Is; client-go retries after it.
	ErrReset = fmt.Errorf("loopback request was aborted: %w", syscall.ECONNRESET)
	// ErrUpgrade is returned for upgrades without Transport.Upgrade.
	ErrUpgrade = errors.New("loopback requests can't be upgraded to another protocol")
)

// errFinished is the reason for the end of a request whose handler has returned.
var errFinished = errors.New("loopback request is over")

// Server receives requests. Make one with [NewServer].
type Server struct {
	logf    func(format string, args ...any)
	ctx     context.Context // the parent of every request's
	close   context.CancelFunc
	serving chan struct{} // closed once handler is set
	handler http.Handler
	running atomic.Int64
}

// NewServer returns a server that has no handler yet: its requests wait for one. It calls logf
// for panics, with a stack, as net/http does.
func NewServer(logf func(format string, args ...any)) *Server {
	s := &Server{logf: logf, serving: make(chan struct{})}
	// Its presence is how httputil.ReverseProxy knows that a panic breaks off an
	// answer which it can't complete.
	s.ctx, s.close = context.WithCancel(context.WithValue(context.Background(), http.ServerContextKey, &http.Server{}))
	return s
}

// Serve passes all requests to h from now on. Call it once.
func (s *Server) Serve(h http.Handler) {
	s.handler = h
	close(s.serving)
}

// Close refuses requests from now on and breaks off those in flight: their contexts end, and
// clients see a broken connection. It does not wait.
func (s *Server) Close() { s.close() }

// Running is the number of requests whose handler has not returned.
func (s *Server) Running() int { return int(s.running.Load()) }

// Transport is a client's way to a server. It ignores the host of a URL.
type Transport struct {
	Server *Server
	// Certificates returns the client's certificates, leaf first, as in a TLS handshake. It is
	// called for each request. If it is nil, the client has none.
	Certificates func() ([]*x509.Certificate, error)
	// Upgrade gets the requests for another protocol. If it is nil, they are refused.
	Upgrade http.RoundTripper
}

// CloseIdleConnections does nothing: there are none.
func (*Transport) CloseIdleConnections() {}

// RoundTrip returns when the handler has flushed its answer, filled a buffer of
// it, or returned. The handler runs in a goroutine of its own until it returns;
// its context ends with r's, with the body's Close, and with [Server.Close].
//
// The handler reads r.Body itself, so a Read that blocks has to end with Close.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.Upgrade != nil && isUpgrade(r) {
		return t.Upgrade.RoundTrip(r)
	}
	w, err := t.start(r)
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	select {
	case <-w.sent:
	case <-w.ctx.Done():
	}
	return w.answer()
}

func isUpgrade(r *http.Request) bool {
	return r.Header.Get("Upgrade") != "" || strings.EqualFold(r.Header.Get("Connection"), "Upgrade")
}

// start waits for the server's handler and starts it.
func (t *Transport) start(r *http.Request) (*response, error) {
	if isUpgrade(r) {
		return nil, ErrUpgrade
	}
	select {
	case <-t.Server.serving:
	case <-t.Server.ctx.Done():
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if t.Server.ctx.Err() != nil {
		return nil, ErrRefused
	}
	state := &tls.ConnectionState{Version: tls.VersionTLS13, HandshakeComplete: true, NegotiatedProtocol: "h2", ServerName: r.URL.Hostname()}
	if t.Certificates != nil {
		var err error
		if state.PeerCertificates, err = t.Certificates(); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancelCause(fence.Inherit(t.Server.ctx, r.Context()))
	served, err := received(ctx, r, state)
	if err != nil {
		cancel(err)
		return nil, err
	}
	w := newResponse(ctx, cancel, r, served.Body)
	served.Body = w.request
	t.Server.running.Add(1)
	go t.Server.serve(w, served)
	return w, nil
}

// received is r as the handler gets it. Its context has none of r's values but the fence: they would not
// have come through a connection, and a request made while another is handled would carry the
// other's user.
func received(ctx context.Context, r *http.Request, state *tls.ConnectionState) (*http.Request, error) {
	uri := r.URL.RequestURI()
	u, err := url.ParseRequestURI(uri)
	if err != nil {
		return nil, fmt.Errorf("loopback request: %w", err)
	}
	served := (&http.Request{
		Method: r.Method, URL: u, RequestURI: uri,
		Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: r.Header.Clone(), Host: r.Host,
		Body: r.Body, ContentLength: r.ContentLength,
		RemoteAddr: Address, TLS: state,
	}).WithContext(ctx)
	if served.Method == "" {
		served.Method = http.MethodGet
	}
	if served.Host == "" {
		served.Host = r.URL.Host
	}
	if served.Header == nil {
		served.Header = http.Header{}
	}
	if served.Body == nil {
		served.Body = http.NoBody
	} else if served.ContentLength == 0 && served.Body != http.NoBody {
		served.ContentLength = -1 // for a client, 0 means unknown; for a server, no body
	}
	return served, nil
}

// serve runs the handler as net/http's server does.
func (s *Server) serve(w *response, r *http.Request) {
	defer s.running.Add(-1)
	finished := false
	defer func() {
		if !finished {
			if v := recover(); v != nil && v != http.ErrAbortHandler {
				s.logf("panic serving %s %s: %v\n%s", r.Method, r.URL.Path, v, debug.Stack())
			}
		}
		w.end(finished)
	}()
	s.handler.ServeHTTP(w, r)
	finished = true
}
