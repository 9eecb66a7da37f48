package simulate

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Ranges that nothing else uses. Nodes get addresses of the range for benchmarks (RFC 2544)
// and of the one for documentation (RFC 3849). Pods get addresses of the shared range (RFC
// 6598) and of a local one (RFC 4193). Nothing ever connects to them.
var (
	nodeRanges = [2]netip.Prefix{netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("2001:db8::/32")}
	podRanges  = [2]netip.Prefix{netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fd73:696d::/32")}
)

// Most is the largest number of nodes: so many have a /24 of their own.
const Most = 1 << (24 - 10)

// PodRange is the range of Pod addresses of one family, unless --cluster-cidr names
// another.
func PodRange(ipv6 bool) netip.Prefix { return podRanges[family(ipv6)] }

func family(ipv6 bool) int {
	if ipv6 {
		return 1
	}
	return 0
}

// nth returns the address n places after the first of a range.
func nth(first netip.Addr, n uint64) netip.Addr {
	bytes := first.As16()
	for i := len(bytes) - 1; n > 0 && i >= 0; i-- {
		n += uint64(bytes[i])
		bytes[i] = byte(n)
		n >>= 8
	}
	a := netip.AddrFrom16(bytes)
	if first.Is4() {
		return a.Unmap()
	}
	return a
}

func nodeAddress(index int, ipv6 bool) netip.Addr {
	return nth(nodeRanges[family(ipv6)].Addr(), uint64(index)+1)
}

// indexAt returns the number of the node with an address, or -1.
func indexAt(at netip.Addr) int {
	of := nodeRanges[family(at.Is6())]
	if !of.Contains(at) {
		return -1
	}
	bytes, first := at.As16(), of.Addr().As16()
	return int(binary.BigEndian.Uint32(bytes[12:])-binary.BigEndian.Uint32(first[12:])) - 1
}

// podRangeOf returns a node's share: a /24 or a /64, as the node IPAM controller assigns
// it.
func podRangeOf(index int, ipv6 bool) netip.Prefix {
	if ipv6 {
		bytes := podRanges[1].Addr().As16()
		bytes[6], bytes[7] = byte(index>>8), byte(index)
		return netip.PrefixFrom(netip.AddrFrom16(bytes), 64)
	}
	return netip.PrefixFrom(nth(podRanges[0].Addr(), uint64(index)<<8), 24)
}

// addresses records which Pod has which address.
type addresses struct {
	mu     sync.Mutex
	owners map[netip.Addr]types.NamespacedName
	last   map[netip.Prefix]netip.Addr // the last one assigned
}

func newAddresses() *addresses {
	return &addresses{owners: map[netip.Addr]types.NamespacedName{}, last: map[netip.Prefix]netip.Addr{}}
}

// take gives a Pod an address of a range: the next free one after the last. So an address
// that was given back is not assigned again immediately.
func (a *addresses) take(from netip.Prefix, pod types.NamespacedName) (netip.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	first := from.Masked().Addr().Next().Next() // after the network's and the gateway's
	if !from.Contains(first) {                  // the range is too small to have one
		return netip.Addr{}, fmt.Errorf("no free address in %s", from)
	}
	at := a.last[from]
	if !at.IsValid() {
		at = first.Prev()
	}
	for range min(1<<16, 1<<min(16, at.BitLen()-from.Bits())) {
		if at = at.Next(); !from.Contains(at) || from.Addr().Is4() && !from.Contains(at.Next()) { // the broadcast address is left out
			at = first
		}
		if _, taken := a.owners[at]; !taken {
			a.owners[at], a.last[from] = pod, at
			return at, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no free address in %s", from)
}

// keep records an address that a Pod has already.
func (a *addresses) keep(at netip.Addr, pod types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.owners[at] = pod
}

// giveBack frees an address if it is still this Pod's.
func (a *addresses) giveBack(at netip.Addr, pod types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.owners[at] == pod {
		delete(a.owners, at)
	}
}

func (a *addresses) owner(at netip.Addr) (types.NamespacedName, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	pod, ok := a.owners[at]
	return pod, ok
}
