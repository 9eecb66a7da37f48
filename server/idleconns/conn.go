package idleconns

import (
	"net"
	"sync/atomic"
	"time"
)

// tracked is a connection of a [Listener].
type tracked interface {
	net.Conn
	now()
	quiet(now time.Duration) time.Duration
}

// activity is when a connection was last used. It is exact only during a shutdown: before, no
// time is taken.
type activity struct {
	from    *Listener
	last    atomic.Int64 // a time.Duration since from.begin
	writing atomic.Int32 // calls of Write
}

func (a *activity) now() { a.last.Store(int64(a.from.elapsed())) }

func (a *activity) used() {
	if a.from.stopping.Load() {
		a.now()
	}
}

// quiet returns for how long the connection has not been used.
func (a *activity) quiet(now time.Duration) time.Duration {
	if a.writing.Load() > 0 {
		return 0
	}
	return now - time.Duration(a.last.Load())
}

func (a *activity) read(b []byte, from func([]byte) (int, error)) (int, error) {
	n, err := from(b)
	a.used()
	return n, err
}

func (a *activity) write(b []byte, to func([]byte) (int, error)) (int, error) {
	a.writing.Add(1)
	n, err := to(b)
	a.used()
	a.writing.Add(-1)
	return n, err
}

// tcpConn keeps what others need of a TCP connection: ReadFrom, CloseWrite, SyscallConn.
type tcpConn struct {
	*net.TCPConn
	activity
}

func (c *tcpConn) Read(b []byte) (int, error)  { return c.read(b, c.TCPConn.Read) }
func (c *tcpConn) Write(b []byte) (int, error) { return c.write(b, c.TCPConn.Write) }

// Close closes the connection and forgets it.
func (c *tcpConn) Close() error {
	c.from.forget(c)
	return c.TCPConn.Close()
}

type otherConn struct {
	net.Conn
	activity
}

func (c *otherConn) Read(b []byte) (int, error)  { return c.read(b, c.Conn.Read) }
func (c *otherConn) Write(b []byte) (int, error) { return c.write(b, c.Conn.Write) }

// Close closes the connection and forgets it.
func (c *otherConn) Close() error {
	c.from.forget(c)
	return c.Conn.Close()
}
