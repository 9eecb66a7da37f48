package etcd

import (
	"io"
	"net"
	"sync"
	"time"
)

// helloLimit is how long a connection may take to send its first bytes.
const helloLimit = 30 * time.Second

// split passes what l accepts to one of two listeners: connections that begin as HTTP/2, as
// gRPC's do, and all others.
func split(l net.Listener) (grpc, plain net.Listener) {
	g, p := newBranch(l), newBranch(l)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil { // closed: nothing else ends a listener
				if wait, ok := err.(interface{ Temporary() bool }); ok && wait.Temporary() { // out of files
					time.Sleep(10 * time.Millisecond)
					continue
				}
				g.end(err)
				p.end(err)
				return
			}
			go func() {
				head := make([]byte, len(http2Preface))
				conn.SetReadDeadline(time.Now().Add(helloLimit))
				n, err := io.ReadFull(conn, head)
				conn.SetReadDeadline(time.Time{})
				switch {
				case n == 0 || err != nil && err != io.ErrUnexpectedEOF:
					conn.Close()
				case string(head[:n]) == http2Preface:
					g.give(&peekedConn{conn, head[:n]})
				default:
					p.give(&peekedConn{conn, head[:n]})
				}
			}()
		}
	}()
	return g, p
}

// http2Preface is a part of the connection preface (RFC 9113, 3.4) with which no request of
// HTTP/1 begins.
const http2Preface = "PRI "

// peekedConn is a connection whose beginning has been read.
type peekedConn struct {
	net.Conn
	head []byte
}

func (c *peekedConn) Read(b []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(b, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// branch is one of the listeners of split. Closing it closes the listener behind.
type branch struct {
	net.Listener
	conns chan net.Conn
	over  chan struct{}
	once  sync.Once
	err   error
}

func newBranch(l net.Listener) *branch {
	return &branch{Listener: l, conns: make(chan net.Conn), over: make(chan struct{})}
}

func (b *branch) Accept() (net.Conn, error) {
	select {
	case c := <-b.conns:
		return c, nil
	case <-b.over:
		return nil, b.err
	}
}

func (b *branch) give(c net.Conn) {
	select {
	case b.conns <- c:
	case <-b.over:
		c.Close()
	}
}

func (b *branch) end(err error) {
	b.once.Do(func() {
		b.err = err
		close(b.over)
	})
}

func (b *branch) Close() error {
	b.end(net.ErrClosed)
	return b.Listener.Close()
}
