package certs

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// SANs are the names and addresses that a serving certificate is valid for. Each list is
// sorted and has no duplicates.
type SANs struct {
	DNSNames []string
	IPs      []net.IP
}

// Strings returns the names, then the addresses.
func (s SANs) Strings() []string {
	out := slices.Clone(s.DNSNames)
	for _, ip := range s.IPs {
		out = append(out, ip.String())
	}
	return out
}

// ParseSAN parses one value of --tls-san: an IP address, or a DNS name. A name may begin
// with "*.", and is returned in lower case. Exactly one of the results is set. The error
// names the value and says what is wrong with it.
func ParseSAN(s string) (dnsName string, ip net.IP, err error) {
	if addr, err := netip.ParseAddr(s); err == nil {
		if addr.Zone() != "" {
			return "", nil, fmt.Errorf("invalid name %q for the serving certificate: leave the zone %q off the address", s, "%"+addr.Zone())
		}
		return "", net.IP(addr.Unmap().AsSlice()), nil
	}
	name := strings.ToLower(strings.TrimSuffix(s, "."))
	if why := notDNS(strings.TrimPrefix(name, "*.")); why != "" {
		return "", nil, fmt.Errorf("invalid name %q for the serving certificate: %s; give an IP address or a DNS name", s, why)
	}
	return name, nil, nil
}

// notDNS says why name, in lower case, cannot be looked up in DNS. It accepts the
// underscore, which host names do not have, but which is in use.
func notDNS(name string) string {
	if strings.Trim(name[strings.LastIndex(name, ".")+1:], "0123456789") == "" {
		return "it is empty, a malformed IP address, or ends in a number"
	}
	return strings.Join(validation.IsDNS1123SubdomainWithUnderscore(name), "; ")
}

// SANs computes what the serving certificate is to be valid for: kubernetes,
// kubernetes.default, kubernetes.default.svc and the same in the cluster domain, localhost,
// the host name, 127.0.0.1, ::1, every interface address that is not IPv6 link-local or
// multicast, the service IPs and the extra SANs.
//
// A host name that is not a DNS name is left out. The error lists every invalid extra SAN,
// service IP and cluster domain. It is also an error if the machine hides its interface
// addresses; the SANs are then complete except for those addresses.
func (c Config) SANs() (SANs, error) {
	c = c.withDefaults()
	var errs []error
	names := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	domain := strings.ToLower(strings.TrimSuffix(c.ClusterDomain, "."))
	if why := notDNS(domain); why != "" {
		errs = append(errs, fmt.Errorf("invalid cluster domain %q: %s", c.ClusterDomain, why))
	} else {
		names = append(names, "kubernetes.default.svc."+domain)
	}
	if h := strings.ToLower(strings.TrimSuffix(c.Hostname, ".")); notDNS(h) == "" {
		names = append(names, h)
	}
	addrs := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	extraNames, extraAddrs, err := parseSANs(c.ExtraSANs)
	names, addrs, errs = append(names, extraNames...), append(addrs, extraAddrs...), append(errs, err)
	for _, ip := range c.ServiceIPs {
		addr, ok := netip.AddrFromSlice(ip)
		if !ok {
			errs = append(errs, fmt.Errorf("invalid service IP %q", ip.String()))
			continue
		}
		addrs = append(addrs, addr.Unmap())
	}
	if err := errors.Join(errs...); err != nil {
		return SANs{}, err
	}
	local, err := c.InterfaceAddrs()
	if err != nil {
		err = &interfaceError{err}
	}
	return newSANs(names, append(addrs, reachable(local)...)), err
}

// parseSANs sorts names and addresses. The error lists every invalid one.
func parseSANs(given []string) (names []string, addrs []netip.Addr, err error) {
	var errs []error
	for _, s := range given {
		name, ip, err := ParseSAN(s)
		switch {
		case err != nil:
			errs = append(errs, err)
		case ip != nil:
			addr, _ := netip.AddrFromSlice(ip)
			addrs = append(addrs, addr)
		default:
			names = append(names, name)
		}
	}
	return names, addrs, errors.Join(errs...)
}

// interfaceError distinguishes a machine that hides its addresses, which can be tolerated,
// from an invalid configuration, which cannot.
type interfaceError struct{ err error }

func (e *interfaceError) Error() string { return "list the interface addresses: " + e.err.Error() }
func (e *interfaceError) Unwrap() error { return e.err }

// reachable returns the addresses that a client could connect to.
func reachable(addrs []net.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range addrs {
		var ip net.IP
		switch a := a.(type) {
		case *net.IPNet:
			ip = a.IP
		case *net.IPAddr:
			ip = a.IP
		}
		addr, ok := netip.AddrFromSlice(ip)
		if !ok {
			continue
		}
		addr = addr.Unmap()
		if addr.IsUnspecified() || addr.IsMulticast() || addr.Is6() && addr.IsLinkLocalUnicast() {
			continue
		}
		out = append(out, addr)
	}
	return out
}

func newSANs(names []string, addrs []netip.Addr) SANs {
	slices.Sort(names)
	slices.SortFunc(addrs, netip.Addr.Compare)
	s := SANs{DNSNames: slices.Compact(names)}
	for _, a := range slices.Compact(addrs) {
		s.IPs = append(s.IPs, net.IP(a.AsSlice()))
	}
	return s
}

// certSANs returns what c is valid for.
func certSANs(c *x509.Certificate) SANs {
	var addrs []netip.Addr
	for _, ip := range c.IPAddresses {
		if a, ok := netip.AddrFromSlice(ip); ok {
			addrs = append(addrs, a.Unmap())
		}
	}
	return newSANs(slices.Clone(c.DNSNames), addrs)
}

// lacking returns what want has and have lacks.
func lacking(have, want SANs) []string {
	var lack []string
	for _, n := range want.DNSNames {
		if !slices.Contains(have.DNSNames, n) {
			lack = append(lack, n)
		}
	}
	for _, ip := range want.IPs {
		if !slices.ContainsFunc(have.IPs, ip.Equal) {
			lack = append(lack, ip.String())
		}
	}
	return lack
}

// sansChanged says why a certificate for have does not serve for want, or "". The names
// must be equal. An address more than wanted is accepted, so that an unplugged cable
// neither rewrites the certificate nor locks a client out.
func sansChanged(have, want SANs) string {
	var why []string
	if lack := lacking(have, want); len(lack) > 0 {
		why = append(why, "new: "+strings.Join(lack, ", "))
	}
	if gone := lacking(SANs{DNSNames: want.DNSNames}, SANs{DNSNames: have.DNSNames}); len(gone) > 0 {
		why = append(why, "gone: "+strings.Join(gone, ", "))
	}
	return strings.Join(why, "; ")
}

// InterfaceAddrs lists the addresses of this machine's interfaces. It leaves out kube-ipvs0,
// where kube-proxy puts the address of every Service of the cluster.
func InterfaceAddrs() ([]net.Addr, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var all []net.Addr
	for _, i := range interfaces {
		if i.Name == "kube-ipvs0" {
			continue
		}
		// An interface that disappeared since it was listed has no addresses.
		if addrs, err := i.Addrs(); err == nil {
			all = append(all, addrs...)
		}
	}
	return all, nil
}
