// Package ports binds the ports of a configuration. Its errors name the option and the reason.
package ports

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// Port is a port that the configuration makes the server listen on.
type Port struct {
	Option  string // the option that sets it, without dashes
	Address string // empty means every address
	Number  int    // 0 means any free port
	AnyFree string // the value of the option that means any free port; empty means 0
}

// Listen binds the port; its errors name the option.
func (p Port) Listen() (net.Listener, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(p.Address, strconv.Itoa(p.Number)))
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("--%s %d: the port is in use by another process (another karve, k3s or kube-apiserver?); choose another, or %s for any free one", p.Option, p.Number, cmp.Or(p.AnyFree, "0"))
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("--%s %d: ports below 1024 need root or CAP_NET_BIND_SERVICE", p.Option, p.Number)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("--%s %d: this machine does not have the address %s", p.Option, p.Number, p.Address)
	}
	return nil, fmt.Errorf("--%s %d: %w", p.Option, p.Number, err)
}

// Try reports why the server could not bind the port now.
func (p Port) Try() error {
	l, err := p.Listen()
	if err != nil {
		return err
	}
	return l.Close()
}

// Local returns host:port of a listener as clients on this machine reach it. It replaces a wildcard
// address with a loopback address.
func Local(l net.Listener) string {
	address := l.Addr().(*net.TCPAddr)
	host := address.IP.String()
	if address.IP.IsUnspecified() {
		host = "127.0.0.1"
		if !haveIPv4Loopback() {
			host = "::1"
		}
	}
	return net.JoinHostPort(host, strconv.Itoa(address.Port))
}

func haveIPv4Loopback() bool {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsLoopback() && ip.IP.To4() != nil {
			return true
		}
	}
	return false
}
