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
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/karve-k8s/karve/internal/ownports"
	"github.com/karve-k8s/karve/server/ports"
)

// handlerGrace is how long Serve waits for handlers to return once their
// connections are closed and their contexts cancelled. endedPoll is how often it looks.
const (
	handlerGrace = 5 * time.Second
	endedPoll    = 5 * time.Millisecond
)

// Serve serves h, behind a [Guard], on l until ctx ends or l fails: HTTP/1.1, and HTTP/2 with prior
// knowledge (RFC 9113, section 3.3). Limits and timeouts are those of the secure port
// (k8s.io/apiserver/pkg/server/secure_serving.go). It closes l. Meanwhile, what this process connects to
// for its users cannot be l (package ownports); programs in the same process use [Dial].
//
// When ctx ends, Serve accepts no more connections, tells HTTP/2 clients to go away (GOAWAY),
// and lets requests in flight finish for opts.ShutdownTimeout. Then it closes all connections
// and ends the contexts of the requests, which do not end with ctx. Connections end soon after the last
// request ([ports.Connections.Finish]). Like upstream, it does not wait for upgraded ones (exec, port-forward).
//
// Serve returns nil if it stopped because ctx ended, and otherwise the error of l. The error
// wraps [ErrStillRunning] if handlers had not returned after all that.
func Serve(ctx context.Context, l net.Listener, h http.Handler, opts Options) error {
	if !opts.Addr.IsValid() {
		opts.Addr = addrPort(l.Addr()).Addr()
	}
	defer ownports.Add(l)()
	return ServePlain(ctx, l, Guard(h, opts), ConnContext, opts)
}

// ServePlain is [Serve] with another guard than that of the insecure port: h sees every request, and connContext is
// called for each connection. Of opts, it uses DisableHTTP2, ShutdownTimeout and Log.
func ServePlain(ctx context.Context, l net.Listener, h http.Handler, connContext func(context.Context, net.Conn) context.Context, opts Options) error {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var running atomic.Int64 // handlers
	ended := func(limit context.Context) error {
		return wait.PollUntilContextCancel(limit, endedPoll, true, func(context.Context) (bool, error) { return running.Load() == 0, nil })
	}
	conns := ports.Track(l)

	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			running.Add(1)
			defer running.Add(-1)
			h.ServeHTTP(w, r)
		}),
		MaxHeaderBytes:    1 << 20,
		IdleTimeout:       90 * time.Second,
		ReadHeaderTimeout: 32 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       connContext,
		ErrorLog:          errorLog(opts.Log),
		Protocols:         new(http.Protocols),
		HTTP2:             http2Config(),
		// Else net/http answers "OPTIONS *" before the guard sees it.
		DisableGeneralOptionsHandler: true,
	}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(!opts.DisableHTTP2)

	accepting := make(chan error, 1)
	go func() { accepting <- srv.Serve(conns) }()

	var failure error
	select {
	case err := <-accepting:
		failure = fmt.Errorf("accepting connections on %s: %w", l.Addr(), err)
	case <-ctx.Done():
		drain, done := context.WithTimeout(context.Background(), opts.ShutdownTimeout)
		go func() {
			if ended(drain) == nil {
				conns.Finish()
			}
		}()
		_ = srv.Shutdown(drain)
		done()
		<-accepting
	}

	_ = srv.Close()
	conns.CloseAll() // those that http.Server no longer knows
	cancel()
	grace, done := context.WithTimeout(context.Background(), handlerGrace)
	defer done()
	if ended(grace) != nil {
		return errors.Join(failure, fmt.Errorf("stopping to listen on %s: %d %w", l.Addr(), running.Load(), ErrStillRunning))
	}
	return failure
}

// frameSize is the largest HTTP/2 frame read, and the buffer for each upload, in bytes. Upstream's
// reasoning is in k8s.io/apiserver/pkg/server/secure_serving.go: 99% of all objects fit.
const frameSize = 256 << 10

// http2Config has upstream's settings (SecureServingInfo.Serve). http.Server takes the idle timeout
// from its own field.
func http2Config() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams:      MaxConcurrentStreams,
		MaxReadFrameSize:          frameSize,
		MaxReceiveBufferPerStream: frameSize,
		// All streams may fill their buffers at the same time.
		MaxReceiveBufferPerConnection: frameSize * MaxConcurrentStreams,
	}
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
