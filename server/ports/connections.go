package ports

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

// Patience is how long connections stay open after the last request of a server that stops, so that clients on
// this machine can read the end of an answer, and GOAWAY.
const Patience = 50 * time.Millisecond

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

// Accept waits for the next connection.
func (l *Connections) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{accepted, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed { // accepted while everything was being closed
		accepted.Close()
		return nil, net.ErrClosed
	}
	l.open[c] = struct{}{}
	return c, nil
}

// CloseAll closes all connections, including those that a handler has hijacked, and every connection that is
// accepted afterwards.
func (l *Connections) CloseAll() { l.close(func(*connection) bool { return true }) }

// CloseLocal is CloseAll, but leaves the connections of clients on other machines open.
func (l *Connections) CloseLocal() { l.close((*connection).local) }

func (l *Connections) close(chosen func(*connection) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for c := range l.open {
		if chosen(c) {
			c.Conn.Close()
			delete(l.open, c)
		}
	}
}

// connection has the methods of a TCP connection that net/http and the guard of the insecure port use.
type connection struct {
	net.Conn
	from *Connections
}

// local reports whether the client is on this machine: it then has the address that it called, or a loopback address.
func (c *connection) local() bool {
	client, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return true // a Unix socket
	}
	called, ok := c.LocalAddr().(*net.TCPAddr)
	return client.IP.IsLoopback() || ok && client.IP.Equal(called.IP)
}

// Close closes the connection, and forgets it.
func (c *connection) Close() error {
	c.from.mu.Lock()
	delete(c.from.open, c)
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
