package insecure

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// tally counts what is in flight. Unlike a sync.WaitGroup, it can be waited for while more is
// coming, and with a deadline.
type tally struct {
	mu   sync.Mutex
	n    int
	zero chan struct{} // closed when n drops to zero; nil: nobody waits
}

func (t *tally) add(d int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n += d
	if t.n == 0 && t.zero != nil {
		close(t.zero)
		t.zero = nil
	}
}

func (t *tally) now() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// wait returns nil once nothing is in flight, or the reason why ctx ended before that.
func (t *tally) wait(ctx context.Context) error {
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return nil
	}
	if t.zero == nil {
		t.zero = make(chan struct{})
	}
	zero := t.zero
	t.mu.Unlock()
	select {
	case <-zero:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// count returns h with a count of its running calls.
func (t *tally) count(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.add(1)
		defer t.add(-1)
		h.ServeHTTP(w, r)
	})
}

// trackingListener knows the open connections that it has accepted. http.Server forgets those
// that a handler has hijacked.
type trackingListener struct {
	net.Listener
	mu     sync.Mutex
	open   map[net.Conn]struct{}
	closed bool
}

// Accept waits for the next connection.
func (l *trackingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	var tracked net.Conn
	if tcp, ok := c.(*net.TCPConn); ok {
		// Keeps what io.Copy and the guard need: ReadFrom, CloseWrite, SyscallConn.
		tracked = &trackedTCP{TCPConn: tcp, from: l}
	} else {
		tracked = &trackedConn{Conn: c, from: l}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed { // accepted while everything was being closed
		c.Close()
		return nil, net.ErrClosed
	}
	l.open[tracked] = struct{}{}
	return tracked, nil
}

func (l *trackingListener) forget(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, c)
}

func (l *trackingListener) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

func (l *trackingListener) closeAll() {
	l.mu.Lock()
	l.closed = true
	var left []net.Conn
	for c := range l.open {
		left = append(left, c)
	}
	l.mu.Unlock()
	for _, c := range left {
		c.Close()
	}
}

type trackedTCP struct {
	*net.TCPConn
	from *trackingListener
}

// Close closes the connection and forgets it.
func (c *trackedTCP) Close() error {
	c.from.forget(c)
	return c.TCPConn.Close()
}

type trackedConn struct {
	net.Conn
	from *trackingListener
}

// Close closes the connection and forgets it.
func (c *trackedConn) Close() error {
	c.from.forget(c)
	return c.Conn.Close()
}
