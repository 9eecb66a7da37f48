package server

import (
	"net"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// advertiseAddress is the address that goes into the endpoints of the kubernetes Service: the
// user's, or the one that the server is bound to, or one of this machine's of the Service's
// family: of the interface with the default route, else of any. It is nil where there is none,
// as on an aeroplane or in a sealed CI job.
func advertiseAddress(users, bind net.IP, ipv6 bool) net.IP {
	if users != nil {
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
