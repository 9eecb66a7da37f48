package ports

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"
)

// patience is how long nothing may have been written to a connection until a server that stops has nothing to write to it. Limit
// is how long it lets a write or read wait for a client, and goodbye for one that has everything and does not hang up.
const (
	patience = 50 * time.Millisecond
	Limit    = 3 * time.Second
	goodbye  = time.Second
)

// Connections is a listener that can close the connections that it has accepted. http.Server cannot: it
// leaves an idle HTTP/2 connection open for a second after GOAWAY, because a distant client may not have read that
// yet, and it does not know the connections that a handler has hijacked.
type Connections struct {
	net.Listener
	mu     sync.Mutex
	open   map[*connection]struct{}
	closed bool // none that is accepted stays open
}

// Track returns a listener for the connections of l.
func Track(l net.Listener) *Connections {
	return &Connections{Listener: l, open: map[*connection]struct{}{}}
}

// Accept waits for the next connection. It closes those that are accepted while everything is being closed, and goes on: an error would
// tell upstream's server, which panics, that the listener was closed before the stop.
func (l *Connections) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.track(accepted); c != nil {
			return c, nil
		}
		accepted.Close()
	}
}

// track returns nil if everything is being closed.
func (l *Connections) track(accepted net.Conn) net.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	c := &connection{Conn: accepted, from: l, gone: make(chan struct{})}
	l.open[c] = struct{}{}
	return c
}

// CloseAll closes all connections, including those that a handler has hijacked, and every connection that is
// accepted afterwards.
func (l *Connections) CloseAll() {
	for _, c := range l.end() {
		c.Close()
	}
}

// Finish is CloseAll for a server without requests: it lets clients have what was written for them. Those on this machine see the end of
// the connection behind that, and hang up; those on others have the second of http.Server.
func (l *Connections) Finish() {
	var finishing sync.WaitGroup
	for _, c := range l.end() {
		finishing.Go(c.finish)
	}
	finishing.Wait()
}

func (l *Connections) end() []*connection {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return slices.Collect(maps.Keys(l.open))
}

// connection has the methods of a TCP connection that net/http and the guard of the insecure port use.
type connection struct {
	net.Conn
	from *Connections
	gone chan struct{} // closed by Close

	mu      sync.Mutex
	writing int
	wrote   time.Time
}

// Write implements net.Conn.
func (c *connection) Write(b []byte) (int, error) {
	c.count(1)
	defer c.count(-1)
	return c.Conn.Write(b)
}

func (c *connection) count(d int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing, c.wrote = c.writing+d, time.Now()
}

// silent reports whether net/http writes to c now, and since when nothing has been written.
func (c *connection) silent() (writing bool, since time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writing > 0, time.Since(c.wrote)
}

// finish closes c. A client that still reads may send something, such as WINDOW_UPDATE of HTTP/2. A closed socket would answer it by a
// reset, which discards what the client has not read. So only the server's side ends first.
func (c *connection) finish() {
	defer c.Close()
	for began, local := time.Now(), c.local(); ; {
		writing, since := c.silent()
		if local && !writing && since >= patience {
			break
		}
		if min(since, time.Since(began)) >= Limit {
			return
		}
		select {
		case <-c.gone:
			return
		case <-time.After(patience / 5):
		}
	}
	_ = c.CloseWrite() // where it is not known, the client has a second
	select {
	case <-c.gone:
	case <-time.After(goodbye):
	}
}

// LocalAddr implements net.Conn. net/http passes the address to each request, and nothing else of a connection if somebody else has made
// the server: see [Close].
func (c *connection) LocalAddr() net.Addr { return address{c.Conn.LocalAddr(), c} }

type address struct {
	net.Addr
	of *connection
}

// AddrPort is that of TCP, and the zero value for a Unix socket.
func (a address) AddrPort() (at netip.AddrPort) {
	if tcp, ok := a.Addr.(*net.TCPAddr); ok {
		at = tcp.AddrPort()
	}
	return at
}

// Close closes the connection of a request with this context, if it came over one that is tracked.
func Close(request context.Context) {
	if at, ok := request.Value(http.LocalAddrContextKey).(address); ok {
		at.of.Close()
	}
}

// local reports whether the client is on this machine: it then has the address that it called, or a loopback address.
func (c *connection) local() bool {
	client, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return true // a Unix socket
	}
	called, ok := c.Conn.LocalAddr().(*net.TCPAddr)
	return client.IP.IsLoopback() || ok && client.IP.Equal(called.IP)
}

// Close closes the connection, and forgets it.
func (c *connection) Close() error {
	c.from.mu.Lock()
	if _, ok := c.from.open[c]; ok {
		delete(c.from.open, c)
		close(c.gone)
	}
	c.from.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite ends what the server sends.
func (c *connection) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// SyscallConn implements syscall.Conn.
func (c *connection) SyscallConn() (syscall.RawConn, error) {
	if system, ok := c.Conn.(syscall.Conn); ok {
		return system.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}
