// Package connections ends connections to simulated nodes and Pods that no longer answer.
package connections

import (
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
)

// Set has those that are open to simulated nodes and Pods. Clients keep a connection for later requests,
// so a check when it is made does not cover these. The zero value has none.
type Set struct {
	mu      sync.Mutex
	stopped error                                       // why there are no more
	open    map[types.NamespacedName]map[*Held]struct{} // a node has no namespace
}

// Hold keeps a connection to a node or a Pod until it is closed. allowed returns why the connection must not
// go on, or nil. It is asked now, because something may have changed since the connection was begun, and with
// each review.
func (c *Set) Hold(to types.NamespacedName, conn net.Conn, allowed func() error) (net.Conn, error) {
	h := &Held{Conn: conn, in: c, to: to, allowed: allowed}
	if err := c.add(h); err != nil {
		conn.Close()
		return nil, err
	}
	if err := allowed(); err != nil {
		h.end(err)
		return nil, err
	}
	return h, nil
}

func (c *Set) add(h *Held) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped != nil {
		return c.stopped
	}
	if c.open == nil {
		c.open = map[types.NamespacedName]map[*Held]struct{}{}
	}
	if c.open[h.to] == nil {
		c.open[h.to] = map[*Held]struct{}{}
	}
	c.open[h.to][h] = struct{}{}
	return nil
}

func (c *Set) remove(h *Held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open[h.to], h)
	if len(c.open[h.to]) == 0 {
		delete(c.open, h.to)
	}
}

// Len returns how many connections are open.
func (c *Set) Len() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, some := range c.open {
		n += len(some)
	}
	return n
}

// Review ends the connections to a node or a Pod that must not go on. Call it after each change of either.
func (c *Set) Review(to types.NamespacedName) {
	c.mu.Lock()
	held := slices.Collect(maps.Keys(c.open[to]))
	c.mu.Unlock()
	for _, h := range held {
		if err := h.allowed(); err != nil {
			h.end(err)
		}
	}
}

// Stop ends all connections with an error, and refuses later ones.
func (c *Set) Stop(why error) {
	c.mu.Lock()
	c.stopped = why
	var held []*Held
	for _, some := range c.open {
		held = slices.AppendSeq(held, maps.Keys(some))
	}
	c.mu.Unlock()
	for _, h := range held {
		h.end(why)
	}
}

// Held is a connection in a Set. When it has been ended, its errors say why.
type Held struct {
	net.Conn
	in      *Set
	to      types.NamespacedName
	allowed func() error
	why     atomic.Pointer[error]
}

func (h *Held) end(why error) {
	h.why.CompareAndSwap(nil, &why)
	h.Close()
}

func (h *Held) explain(err error) error {
	if why := h.why.Load(); err != nil && why != nil {
		return *why
	}
	return err
}

// Read implements net.Conn.
func (h *Held) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	return n, h.explain(err)
}

// Write implements net.Conn.
func (h *Held) Write(p []byte) (int, error) {
	n, err := h.Conn.Write(p)
	return n, h.explain(err)
}

// Close implements net.Conn.
func (h *Held) Close() error {
	h.in.remove(h)
	return h.Conn.Close()
}

// CloseWrite ends one direction of a connection to a Pod.
func (h *Held) CloseWrite() error {
	if half, ok := h.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
