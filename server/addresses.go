package server

import (
	"net"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// advertised is the address of this server for the endpoints of the kubernetes Service, and for nodes. It is the user's, else
// the one that the server is bound to, else one of this machine in the Service's family, which may change: see IP. There is none on
// a machine without a network, and if the user's is a loopback address: no endpoint can have one.
type advertised struct {
	look machine // nil: the address stays
	log  *logrus.Logger

	mu     sync.Mutex
	ip     net.IP // nil: none
	routed bool   // it was that of the default route
	seen   time.Time
}

// machine returns the addresses of this machine of one family, and which of them the interface with the default route has, if there is one.
type machine func() (own []net.IP, routed net.IP)

func newAdvertised(c Config, ipv6 bool) *advertised {
	switch users, bind := net.ParseIP(c.AdvertiseAddress), net.ParseIP(c.BindAddress); {
	case users.IsLoopback():
		return &advertised{}
	case users != nil && !users.IsUnspecified():
		return &advertised{ip: users}
	case bind != nil && !bind.IsUnspecified() && !bind.IsLoopback():
		return &advertised{ip: bind}
	}
	look := c.machine
	if look == nil {
		look = func() ([]net.IP, net.IP) { return thisMachine(ipv6) }
	}
	return &advertised{look: look, log: c.Log}
}

// source returns IP, or nil if there will never be an address.
func (a *advertised) source() func() net.IP {
	if a.look == nil && a.ip == nil {
		return nil
	}
	return a.IP
}

// withoutRoute is how long a lost address stays without a default route, which comes back soon after most losses. Meanwhile the
// only other address may be that of a bridge of containers.
const withoutRoute = 30 * time.Second

// IP returns the address, or nil. It looks at the machine each time. A chosen address stays as long as the machine has it, because those of
// a VPN come and go. Only one that was chosen without a default route gives way to that of the route.
func (a *advertised) IP() net.IP {
	if a.look == nil {
		return a.ip
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	own, routed := a.look()
	has := slices.ContainsFunc(own, a.ip.Equal)
	if has {
		a.seen = time.Now()
	}
	next := routed
	if next == nil && len(own) > 0 && (a.ip == nil || time.Since(a.seen) >= withoutRoute) {
		next = own[0]
	}
	switch {
	case next == nil, has && (a.routed || routed == nil):
		return a.ip
	case a.ip != nil && !next.Equal(a.ip):
		a.log.Warnf("the address of this server for nodes and the Service kubernetes is %s now, and not %s: nodes that joined at that one join again; --control-plane-endpoint gives them a name, and --advertise-address an address that stays", next, a.ip)
	}
	a.ip, a.routed, a.seen = next, routed != nil, time.Now()
	return a.ip
}

// thisMachine looks at this machine.
func thisMachine(ipv6 bool) (own []net.IP, routed net.IP) {
	addresses, _ := net.InterfaceAddrs() // without them, nothing changes
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && (ip.IP.To4() == nil) == ipv6 {
			own = append(own, ip.IP)
		}
	}
	unspecified := net.IPv4zero
	if ipv6 {
		unspecified = net.IPv6unspecified
	}
	if ip, err := utilnet.ResolveBindAddress(unspecified); err == nil && (ip.To4() == nil) == ipv6 {
		routed = ip
	}
	return own, routed
}
