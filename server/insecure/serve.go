package insecure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	//lint:ignore SA1019 net/http has no Upgrade to HTTP/2: see upgradable
	"golang.org/x/net/http2/h2c"
)

// handlerGrace is how long Serve waits for handlers to return once their
// connections are closed and their contexts cancelled.
const handlerGrace = 5 * time.Second

// Serve serves h, behind a [Guard], on l until ctx ends or l fails: HTTP/1.1, HTTP/2 with
// prior knowledge, and HTTP/2 by "Upgrade: h2c" for requests without a body. Limits and
// timeouts are those of the secure port (k8s.io/apiserver/pkg/server/secure_serving.go). It
// closes l.
//
// When ctx ends, Serve accepts no more connections, tells HTTP/2 clients to go away (GOAWAY),
// and lets requests in flight finish for opts.ShutdownTimeout. Then it closes all connections
// and ends the contexts of the requests, which do not end with ctx. Like upstream, it does not
// wait for upgraded connections (exec, port-forward), which may last for ever.
//
// Serve returns nil if it stopped because ctx ended, and otherwise the error of l. The error
// wraps [ErrStillRunning] if handlers had not returned after all that.
func Serve(ctx context.Context, l net.Listener, h http.Handler, opts Options) error {
	opts = opts.withDefaults()
	if !opts.Addr.IsValid() {
		opts.Addr = addrPort(l.Addr()).Addr()
	}
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var running, upgraded tally
	conns := &trackingListener{Listener: l, open: make(map[net.Conn]struct{})}

	srv := &http.Server{
		MaxHeaderBytes:    1 << 20,
		IdleTimeout:       90 * time.Second,
		ReadHeaderTimeout: 32 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       ConnContext,
		ErrorLog:          errorLog(opts.Log),
		Protocols:         new(http.Protocols),
		// Else net/http answers "OPTIONS *" before the guard sees it.
		DisableGeneralOptionsHandler: true,
	}
	srv.Protocols.SetHTTP1(true)
	if opts.DisableHTTP2 {
		srv.Handler = running.count(Guard(h, opts))
	} else {
		h2 := http2Server(opts)
		// Both kinds of HTTP/2 connections go through h2, so that this one call
		// makes Shutdown say GOAWAY to all of them.
		if err := http2.ConfigureServer(srv, h2); err != nil {
			l.Close()
			return fmt.Errorf("configuring HTTP/2: %w", err)
		}
		srv.Protocols.SetUnencryptedHTTP2(true)
		srv.Handler = running.count(upgradable(h, h2, opts, &upgraded))
	}

	accepting := make(chan error, 1)
	go func() { accepting <- srv.Serve(conns) }()

	var failure error
	select {
	case err := <-accepting:
		failure = fmt.Errorf("accepting connections on %s: %w", l.Addr(), err)
	case <-ctx.Done():
		drain, done := context.WithTimeout(context.Background(), opts.ShutdownTimeout)
		// The connections of an h2c upgrade are hijacked: Shutdown has told
		// them to go away too, but does not wait for them.
		err := srv.Shutdown(drain)
		if werr := upgraded.wait(drain); err == nil {
			err = werr
		}
		done()
		<-accepting
		if err != nil && opts.Log != nil {
			opts.Log.WithError(err).Debugf("closing %d connections on the insecure port", conns.count())
		}
	}

	_ = srv.Close()
	conns.closeAll() // those that http.Server no longer knows
	cancel()
	grace, done := context.WithTimeout(context.Background(), handlerGrace)
	defer done()
	if running.wait(grace) != nil {
		return errors.Join(failure, fmt.Errorf("stopping the insecure port: %d %w", running.now(), ErrStillRunning))
	}
	return failure
}

// http2Server has upstream's settings (SecureServingInfo.Serve).
func http2Server(opts Options) *http2.Server {
	perConn := int64(opts.FrameSize) * int64(opts.MaxConcurrentStreams)
	return &http2.Server{
		IdleTimeout:              90 * time.Second,
		MaxConcurrentStreams:     opts.MaxConcurrentStreams,
		MaxReadFrameSize:         opts.FrameSize,
		MaxUploadBufferPerStream: int32(opts.FrameSize),
		// All streams may fill their buffers at the same time. HTTP/2 has 31 bits for the size.
		MaxUploadBufferPerConnection: int32(min(perConn, 1<<31-1)),
	}
}

type upgradedKey struct{}

// upgradable serves next behind a guard, and turns HTTP/1.1 connections into HTTP/2 ones when
// a request asks for it (RFC 7540, section 3.2; curl --http2 does). The guard sees the request
// before it is upgraded, and each request on the upgraded connection.
//
// net/http itself supports prior knowledge only, so this uses the deprecated h2c package. That
// reads the request's body into memory first, so requests with a body stay HTTP/1.1, for which
// a client must be prepared.
func upgradable(next http.Handler, h2 *http2.Server, opts Options, upgraded *tally) http.Handler {
	var upgrade http.Handler
	guarded := Guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !wantsH2C(r) {
			next.ServeHTTP(w, r)
			return
		}
		if r.Context().Value(upgradedKey{}) == nil {
			upgraded.add(1)
			defer upgraded.add(-1)
			upgrade.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), upgradedKey{}, true)))
			return
		}
		// The request that asked for the upgrade is the first to be served on
		// the new connection, where these headers mean nothing any more.
		r = r.Clone(r.Context())
		for _, name := range []string{"Upgrade", "Connection", "Http2-Settings"} {
			r.Header.Del(name)
		}
		next.ServeHTTP(w, r)
	}), opts)
	//lint:ignore SA1019 as above
	upgrade = h2c.NewHandler(guarded, h2)
	return guarded
}

func wantsH2C(r *http.Request) bool {
	return r.ProtoMajor == 1 && r.ContentLength == 0 &&
		httpguts.HeaderValuesContainsToken(r.Header["Upgrade"], "h2c") &&
		httpguts.HeaderValuesContainsToken(r.Header["Connection"], "HTTP2-Settings")
}

// errorLog logs the errors of net/http, which mostly tell of clients that went away.
func errorLog(entry *logrus.Entry) *log.Logger {
	if entry == nil {
		return log.New(io.Discard, "", 0)
	}
	return log.New(errorWriter{entry}, "", 0)
}

type errorWriter struct{ entry *logrus.Entry }

func (w errorWriter) Write(p []byte) (int, error) {
	level := logrus.DebugLevel
	if line := string(p); strings.Contains(line, "panic") {
		level = logrus.ErrorLevel
	}
	w.entry.Log(level, strings.TrimSpace(string(p)))
	return len(p), nil
}
