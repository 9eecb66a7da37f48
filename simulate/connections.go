package simulate

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
)

// connections are those that are open to simulated nodes and Pods. Clients keep a connection for later requests,
// so a check when it is made does not cover these. The zero value has none.
type connections struct {
	mu      sync.Mutex
	stopped bool
	open    map[types.NamespacedName]map[*heldConn]struct{} // a node has no namespace
}

// errStopped is the end of every connection.
var errStopped = fmt.Errorf("%w: the nodes have stopped", ErrSimulated)

// hold keeps a connection to a node or a Pod until it is closed. allowed returns why the connection must not
// go on, or nil. It is asked now, because something may have changed since the connection was begun, and with
// each review.
func (c *connections) hold(to types.NamespacedName, conn net.Conn, allowed func() error) (net.Conn, error) {
	h := &heldConn{Conn: conn, in: c, to: to, allowed: allowed}
	if !c.add(h) {
		conn.Close()
		return nil, errStopped
	}
	if err := allowed(); err != nil {
		h.end(err)
		return nil, err
	}
	return h, nil
}

func (c *connections) add(h *heldConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return false
	}
	if c.open == nil {
		c.open = map[types.NamespacedName]map[*heldConn]struct{}{}
	}
	if c.open[h.to] == nil {
		c.open[h.to] = map[*heldConn]struct{}{}
	}
	c.open[h.to][h] = struct{}{}
	return true
}

func (c *connections) remove(h *heldConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open[h.to], h)
	if len(c.open[h.to]) == 0 {
		delete(c.open, h.to)
	}
}

// review ends the connections to a node or a Pod that must not go on. Call it after each change of either.
func (c *connections) review(to types.NamespacedName) {
	c.mu.Lock()
	held := slices.Collect(maps.Keys(c.open[to]))
	c.mu.Unlock()
	for _, h := range held {
		if err := h.allowed(); err != nil {
			h.end(err)
		}
	}
}

// stop ends all connections, and refuses later ones.
func (c *connections) stop() {
	c.mu.Lock()
	c.stopped = true
	var held []*heldConn
	for _, some := range c.open {
		held = slices.AppendSeq(held, maps.Keys(some))
	}
	c.mu.Unlock()
	for _, h := range held {
		h.end(errStopped)
	}
}

// heldConn is a connection in connections. When it has been ended, its errors say why.
type heldConn struct {
	net.Conn
	in      *connections
	to      types.NamespacedName
	allowed func() error
	why     atomic.Pointer[error]
}

func (h *heldConn) end(why error) {
	h.why.CompareAndSwap(nil, &why)
	h.Close()
}

func (h *heldConn) explain(err error) error {
	if why := h.why.Load(); err != nil && why != nil {
		return *why
	}
	return err
}

func (h *heldConn) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	return n, h.explain(err)
}

func (h *heldConn) Write(p []byte) (int, error) {
	n, err := h.Conn.Write(p)
	return n, h.explain(err)
}

func (h *heldConn) Close() error {
	h.in.remove(h)
	return h.Conn.Close()
}

// CloseWrite ends one direction of a connection to a Pod.
func (h *heldConn) CloseWrite() error {
	if half, ok := h.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
