// Package ownports keeps a server from connecting to its own listeners without authentication.
//
// Such a listener takes whoever reaches it for an administrator if the socket is the server's
// user's, and the server's own sockets are. But users name much of what the server connects to:
// webhooks, Services, nodes, issuers of tokens. So dialers ask this package after a name has been
// resolved.
//
// The package gives its dialer to http.DefaultTransport too. Upstream's clients without a dialer of
// their own take that one (k8s.io/apimachinery/pkg/util/net, SetTransportDefaults).
package ownports

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// ErrOwn is wrapped by the error of a dialer for the address of such a listener.
var ErrOwn = errors.New("a port of this server without authentication")

// DialFunc is the signature of net.Dialer's DialContext.
type DialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// listeners are those of this process.
var listeners struct {
	sync.Mutex
	all map[net.Listener]netip.AddrPort
}

func init() {
	if t, ok := http.DefaultTransport.(*http.Transport); ok && t.DialContext != nil {
		t.DialContext = Avoid(t.DialContext)
	}
}

// Add makes dialers refuse the address of l until remove is called. If l is bound to every address,
// that is each one of this machine.
func Add(l net.Listener) (remove func()) {
	at, ok := addrPort(l.Addr())
	if !ok {
		return func() {}
	}
	listeners.Lock()
	defer listeners.Unlock()
	if listeners.all == nil {
		listeners.all = map[net.Listener]netip.AddrPort{}
	}
	listeners.all[l] = at
	return func() {
		listeners.Lock()
		defer listeners.Unlock()
		delete(listeners.all, l)
	}
}

// Avoid returns a dialer that closes a connection of dial to a listener that [Add] knows, before
// anything is sent. The error wraps [ErrOwn].
func Avoid(dial DialFunc) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return conn, err
		}
		// What a name meant when it was checked, it may no longer mean. This is the address that
		// it was resolved to.
		if at, ok := addrPort(conn.RemoteAddr()); ok && own(at) {
			conn.Close()
			return nil, fmt.Errorf("connect to %s: %s is %w, to which it does not connect itself", address, at, ErrOwn)
		}
		return conn, nil
	}
}

// Dial is a dialer with net.Dialer's defaults that avoids these listeners.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return Avoid(new(net.Dialer).DialContext)(ctx, network, address)
}

func own(at netip.AddrPort) bool {
	listeners.Lock()
	defer listeners.Unlock()
	for _, l := range listeners.all {
		if reaches(at, l) {
			return true
		}
	}
	return false
}

func reaches(at, listener netip.AddrPort) bool {
	return listener.Port() == at.Port() && (listener.Addr() == at.Addr() || listener.Addr().IsUnspecified() && IsLocal(at.Addr()))
}

// Reaches reports whether a connection to the address at is one to the listener of this machine with the address listener.
func Reaches(at, listener net.Addr) bool {
	to, ok := addrPort(at)
	l, isTCP := addrPort(listener)
	return ok && isTCP && reaches(to, l)
}

// addrPort is a's address. An IPv4 address is IPv4 whatever the family of the socket.
func addrPort(a net.Addr) (netip.AddrPort, bool) {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}, false
	}
	at := tcp.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port()), at.IsValid()
}

// IsLocal reports whether ip is an address of this machine. It is true if that cannot be found
// out, because the rules for local addresses are the stricter ones.
func IsLocal(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	if ip.IsLoopback() || ip.IsUnspecified() {
		return true
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if own, ok := netip.AddrFromSlice(n.IP); ok && own.Unmap() == ip {
				return true
			}
		}
	}
	return false
}
