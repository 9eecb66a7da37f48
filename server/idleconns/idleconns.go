// Package idleconns closes the idle connections of an http.Server that shuts down, if its clients
// are on the same machine.
//
// http.Server.Shutdown closes an idle HTTP/1.1 connection immediately. It sends GOAWAY on an idle
// HTTP/2 connection, and leaves the connection open for another second, because a distant client may
// not have read the frame yet (goAwayTimeout in net/http and in golang.org/x/net/http2). No option
// changes that second. A client on the same machine needs a fraction of it.
package idleconns

import (
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Patience is how long a connection must be idle during a shutdown before it is closed. It is long
// enough for a busy client on the same machine.
const Patience = 100 * time.Millisecond

// checks is how often Patience is divided by to look for idle connections.
const checks = 20

// Listener tracks the connections that it accepts. When the server closes the listener, which is
// the first thing that http.Server.Shutdown does, it begins to close idle connections. It uses
// nothing of the server's but its requests, so it works with any implementation of HTTP/2.
//
// A connection is idle if, for as long as [Patience], no request has been running on any connection,
// nothing has been read from or written to this one, and no write to it has been waiting for the
// client. A request runs until its handler has returned, and in HTTP/2 until its stream is closed: the
// server sends the last part of a response after the handler, and that part may wait for the client's
// flow control.
type Listener struct {
	net.Listener
	requests atomic.Int64 // running
	stopping atomic.Bool
	once     sync.Once // the first Close
	begin    time.Time // of the times of connections
	local    bool      // the address is Local

	mu   sync.Mutex
	open map[tracked]struct{}
	cut  bool // CloseAll was called
}

// Local reports whether only this machine can reach a listener with that address.
func Local(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback()
}

// Track returns a listener for the connections of l. It closes idle connections during a shutdown
// only if the address of l is [Local].
func Track(l net.Listener) *Listener {
	return &Listener{Listener: l, begin: time.Now(), local: Local(l.Addr()), open: map[tracked]struct{}{}}
}

// Handler returns h with a count of its running requests. All requests of the server must go
// through it. Requests that come from no http.Server are not counted.
func (l *Listener) Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Value(http.ServerContextKey) != nil {
			l.requests.Add(1)
			defer l.returned(w, r)
		}
		h.ServeHTTP(w, r)
	})
}

// returned ends the count of a request whose handler returns, when nothing is left to send. It changes
// nothing in the response: a flush would send a short one without its Content-Length.
func (l *Listener) returned(w http.ResponseWriter, r *http.Request) {
	// The only signal that net/http and golang.org/x/net/http2 give of the end of a stream. Both send
	// it when the stream is closed, whether or not the response is complete.
	notifier, ok := w.(interface{ CloseNotify() <-chan bool }) // http.CloseNotifier, which is deprecated
	// In HTTP/1, the signal comes only from a client that goes away. The request's version does not
	// tell: a server without HTTP/2 gives the preface of HTTP/2 to the handler as a request of its
	// version. Only HTTP/1 can be hijacked.
	_, http1 := w.(http.Hijacker)
	// The context has ended if the stream is closed already; then the handler may have taken the
	// signal.
	if http1 || !ok || !l.local || r.Context().Err() != nil {
		l.requests.Add(-1)
		return
	}
	closed := notifier.CloseNotify()
	go func() {
		<-closed
		l.requests.Add(-1)
	}()
}

// Accept waits for the next connection. If it is a *net.TCPConn, the result has the same methods.
func (l *Listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	var c tracked
	if tcp, ok := accepted.(*net.TCPConn); ok {
		c = &tcpConn{TCPConn: tcp, activity: activity{from: l}}
	} else {
		c = &otherConn{Conn: accepted, activity: activity{from: l}}
	}
	c.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut { // accepted while everything was being closed
		accepted.Close()
		return nil, net.ErrClosed
	}
	l.open[c] = struct{}{}
	return c, nil
}

// Close closes the listener, and begins to close idle connections.
func (l *Listener) Close() error {
	l.once.Do(func() {
		if !l.local {
			return
		}
		l.stopping.Store(true)
		go l.closeIdle(l.elapsed())
	})
	return l.Listener.Close()
}

// closeIdle returns when no connection is left. since is when the shutdown has begun.
func (l *Listener) closeIdle(since time.Duration) {
	tick := time.NewTicker(Patience / checks)
	defer tick.Stop()
	for l.Count() > 0 {
		<-tick.C
		now := l.elapsed()
		if l.requests.Load() > 0 {
			since = now
		}
		if now-since < Patience {
			continue
		}
		for _, c := range l.connections() {
			if c.quiet(now) >= Patience {
				c.Close()
			}
		}
	}
}

// Count returns the number of open connections, including those that a handler has hijacked.
func (l *Listener) Count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// CloseAll closes all connections, including those that a handler has hijacked, and every
// connection that is accepted afterwards.
func (l *Listener) CloseAll() {
	l.mu.Lock()
	l.cut = true
	l.mu.Unlock()
	for _, c := range l.connections() {
		c.Close()
	}
}

func (l *Listener) connections() []tracked {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]tracked, 0, len(l.open))
	for c := range l.open {
		all = append(all, c)
	}
	return all
}

func (l *Listener) forget(c tracked) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, c)
}

func (l *Listener) elapsed() time.Duration { return time.Since(l.begin) }
