package server

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	netutils "k8s.io/utils/net"
)

// listen binds a port; its errors name the option that chose it.
func listen(flag, address string, port int) (net.Listener, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("--%s %d: the port is in use by another process (another karve, k3s or kube-apiserver?); choose another, or 0 for any", flag, port)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("--%s %d: ports below 1024 need root or CAP_NET_BIND_SERVICE", flag, port)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("--%s %d: this machine does not have the address %s", flag, port, address)
	}
	return nil, fmt.Errorf("--%s %d: %w", flag, port, err)
}

// localAddress is host:port of a listener as this machine reaches it: a
// wildcard address is replaced by loopback's.
func localAddress(l net.Listener) string {
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

// advertiseAddress is the address that goes into the kubernetes Service's
// endpoints: the user's, or one of the Service's family from this machine: of
// the interface with the default route, else of any. Nil where there is none,
// as on an aeroplane or in a sealed CI job.
func advertiseAddress(c Config) net.IP {
	if ip := net.ParseIP(c.AdvertiseAddress); ip != nil {
		return ip
	}
	ipv6 := netutils.IsIPv6CIDRString(firstOf(c.ServiceClusterIPRange))
	bind := net.ParseIP(c.BindAddress)
	if bind != nil && !bind.IsUnspecified() && !bind.IsLoopback() {
		return bind
	}
	any := net.IPv4zero
	if ipv6 {
		any = net.IPv6unspecified
	}
	if ip, err := utilnet.ResolveBindAddress(any); err == nil && (ip.To4() == nil) == ipv6 {
		return ip
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range addresses {
		ip, ok := a.(*net.IPNet)
		if ok && ip.IP.IsGlobalUnicast() && (ip.IP.To4() == nil) == ipv6 {
			return ip.IP
		}
	}
	return nil
}
