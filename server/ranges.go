package server

import (
	"fmt"
	"net"
	"slices"
	"strings"

	netutils "k8s.io/utils/net"
)

// parseRanges reads the ranges of Service and Pod addresses, and chooses the address to advertise.
func (d *draft) parseRanges() {
	var err error
	d.services, err = parseCIDRs("service-cluster-ip-range", d.ServiceClusterIPRange)
	d.add(err)
	if d.ClusterCIDR == "" && d.simulatedNodes() == 0 {
		d.ClusterCIDR, d.podsChosen = choosePodRanges(d.services), true
	}
	pods, err := parseCIDRs("cluster-cidr", d.ClusterCIDR)
	d.add(err)
	usable := d.services != nil
	for _, s := range d.services {
		if ones, bits := s.Mask.Size(); bits-ones < 3 { // as upstream, whose message does not name the option
			d.addf("--service-cluster-ip-range %s: want 8 addresses at least, such as a range of size /%d", s, bits-3)
			usable = false
		} else if bits == 128 && ones < 64 { // upstream takes it, and has no address for any Service
			d.addf("--service-cluster-ip-range %s: want an IPv6 range of size /64 at most", s)
		}
		for _, p := range pods {
			if overlap(s, p) {
				d.addf("--cluster-cidr %s overlaps --service-cluster-ip-range %s", p, s)
			}
		}
		ip, err := netutils.GetIndexedIP(s, 1)
		if err != nil {
			d.addf("--service-cluster-ip-range %s: %w", s, err)
			continue
		}
		d.serviceIPs = append(d.serviceIPs, ip)
	}
	d.parseSimulation()
	// Upstream's checks need ranges that can be used. With Karve's default in their place,
	// upstream repeats no problem that was reported above.
	if !usable {
		d.ServiceClusterIPRange = DefaultServiceClusterIPRange
	}
	ipv6 := len(d.services) > 0 && netutils.IsIPv6CIDR(d.services[0])
	d.advertise = newAdvertised(d.Config, ipv6)
}

// choosePodRanges returns the default of --cluster-cidr: a range for each family of Service
// addresses, apart from these. If the Service addresses leave none for one family, such as all of
// 10.0.0.0/8, it returns none at all: Pods of a dual-stack cluster need both.
func choosePodRanges(services []*net.IPNet) string {
	var chosen []string
	for _, s := range services {
		candidates := []string{DefaultClusterCIDR, "10.42.0.0/16"}
		if netutils.IsIPv6CIDR(s) {
			candidates = []string{DefaultClusterCIDRv6, "fd00:10:42::/56"}
		}
		i := slices.IndexFunc(candidates, func(c string) bool {
			_, pods, err := net.ParseCIDR(c)
			return err == nil && !overlap(s, pods)
		})
		if i < 0 {
			return ""
		}
		chosen = append(chosen, candidates[i])
	}
	return strings.Join(chosen, ",")
}

func overlap(a, b *net.IPNet) bool { return a.Contains(b.IP) || b.Contains(a.IP) }

// parseCIDRs parses one CIDR, or two of different families.
func parseCIDRs(flag, list string) ([]*net.IPNet, error) {
	if list == "" {
		return nil, nil
	}
	var cidrs []*net.IPNet
	for part := range strings.SplitSeq(list, ",") {
		_, cidr, err := net.ParseCIDR(part)
		if err != nil {
			return nil, fmt.Errorf("--%s %s: %q is not a CIDR such as 10.96.0.0/12 or fd00:10:96::/112", flag, list, part)
		}
		cidrs = append(cidrs, cidr)
	}
	if len(cidrs) > 2 {
		return nil, fmt.Errorf("--%s %s: want one range, or one for IPv4 and one for IPv6", flag, list)
	}
	if len(cidrs) == 2 && netutils.IsIPv4CIDR(cidrs[0]) == netutils.IsIPv4CIDR(cidrs[1]) {
		return nil, fmt.Errorf("--%s %s: both ranges are of one family, want one for IPv4 and one for IPv6", flag, list)
	}
	return cidrs, nil
}
