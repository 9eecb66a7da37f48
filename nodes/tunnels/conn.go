package tunnels

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
)

// conn is a connection through a tunnel. A channel of the ssh package has no deadlines, and its
// Close does not end a Read or Write that waits. So users get one end of a net.Pipe, which has
// both, and two goroutines copy between the other end and the channel.
type conn struct {
	net.Conn
	c      *client
	remote net.Addr

	closed atomic.Bool // by the user
	linger *time.Timer // ends the channel; stopped unless it is closed
	ended  atomic.Pointer[error]
}

func newConn(c *client, channel ssh.Channel, host string, port int) (net.Conn, error) {
	t := c.t
	t.mu.Lock()
	if t.running.Err() != nil {
		t.mu.Unlock()
		channel.Close()
		return nil, errStopped
	}
	t.copying.Add(1)
	t.mu.Unlock()
	user, inside := net.Pipe()
	k := &conn{Conn: user, c: c, remote: destination(host, port)}
	k.linger = time.AfterFunc(time.Hour, func() { channel.Close() })
	k.linger.Stop()
	c.conns.Add(1)
	var both sync.WaitGroup
	both.Go(func() { k.receive(channel, inside) })
	both.Go(func() {
		_, _ = io.CopyBuffer(struct{ io.Writer }{channel}, struct{ io.Reader }{inside}, make([]byte, bufferSize))
		channel.Close() // after everything that was written
	})
	unstop := context.AfterFunc(t.running, func() {
		k.ended.CompareAndSwap(nil, &errStopped)
		inside.Close() // its user may not read what is left
	})
	go func() {
		defer t.copying.Done()
		both.Wait()
		k.linger.Stop()
		unstop()
		c.conns.Add(-1)
	}()
	return k, nil
}

// bufferSize is that of each direction of a connection.
const bufferSize = 16 << 10

// receive copies what the node sends. The end of the channel is either the end of the stream
// or that of the tunnel; the ssh package does not tell them apart, so it asks.
func (k *conn) receive(channel ssh.Channel, inside net.Conn) {
	defer inside.Close()
	_, err := io.CopyBuffer(struct{ io.Writer }{inside}, struct{ io.Reader }{channel}, make([]byte, bufferSize))
	if k.closed.Load() || errors.Is(err, io.ErrClosedPipe) {
		return
	}
	if cause := k.c.alive(); cause != nil {
		k.ended.Store(&cause)
	}
}

// why replaces the error of a pipe whose other end is closed.
func (k *conn) why(err error) error {
	if err == nil || timedOut(err) || k.closed.Load() {
		return err
	}
	if cause := k.ended.Load(); cause != nil {
		return &net.OpError{Op: "tunnel", Net: "tcp", Addr: k.remote, Err: *cause}
	}
	return err
}

func (k *conn) Read(p []byte) (int, error) {
	n, err := k.Conn.Read(p)
	return n, k.why(err)
}

func (k *conn) Write(p []byte) (int, error) {
	n, err := k.Conn.Write(p)
	return n, k.why(err)
}

// Close ends the connection. What has been written still reaches the other end, unless that does not
// read it in time: a full channel would otherwise stay as long as the tunnel.
func (k *conn) Close() error {
	if !k.closed.Swap(true) {
		k.linger.Reset(k.c.t.config.Linger)
	}
	return k.Conn.Close()
}

func (k *conn) RemoteAddr() net.Addr { return k.remote }
func (k *conn) LocalAddr() net.Addr  { return k.c.ssh.LocalAddr() }
