package server

import (
	"net"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// advertiseAddress returns the address for the endpoints of the kubernetes Service. It is the
// user's, else the one that the server is bound to, else an address of this machine in the
// Service's family. An address of the interface with the default route wins over those of other
// interfaces. The result is nil if there is none, as on a machine without a network, and if the
// user's is a loopback address: no endpoint can have one, and from 1.37 on upstream does not start
// with it.
func advertiseAddress(users, bind net.IP, ipv6 bool) net.IP {
	if users.IsLoopback() {
		return nil
	}
	if users != nil && !users.IsUnspecified() {
		return users
	}
	if bind != nil && !bind.IsUnspecified() && !bind.IsLoopback() {
		return bind
	}
	unspecified := net.IPv4zero
	if ipv6 {
		unspecified = net.IPv6unspecified
	}
	if ip, err := utilnet.ResolveBindAddress(unspecified); err == nil && (ip.To4() == nil) == ipv6 {
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
