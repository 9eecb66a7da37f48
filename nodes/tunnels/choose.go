package tunnels

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/karve-k8s/karve/internal/quote"
)

// Dial returns a dialer of connections to nodes, Pods and Services. Only connections to localhost go
// to next: that is how upstream names this API server itself.
//
// A connection to an address of a node goes through that node's tunnel, and no other. Another
// connection goes through the node whose PodCIDRs have its address if that is healthy, and
// otherwise through any healthy node.
func (t *Tunnels) Dial(next DialFunc) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		ip, _ := netip.ParseAddr(host)
		if ip = ip.Unmap(); host == "localhost" || ip == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || ip == netip.IPv6Loopback() {
			return next(ctx, network, address)
		}
		if err := CheckAddress(host); err != nil { // otherwise another node would be asked for it
			return nil, fmt.Errorf("%w: %w", ErrNoTunnel, err)
		}
		deadline := time.Now().Add(dialLimit)
		if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
			deadline = d
		}
		ctx, cancel := context.WithDeadline(ctx, deadline)
		defer cancel()
		through, err := t.choose(ctx, host, ip)
		if err != nil {
			return nil, err
		}
		var failed error
		for i, client := range through {
			share, cancel := context.WithTimeout(ctx, time.Until(deadline)/time.Duration(len(through)-i))
			conn, err := client.open(share, address)
			cancel()
			if err == nil {
				return conn, nil
			}
			failed = bothFailed(failed, err)
			if ctx.Err() != nil {
				break
			}
		}
		return nil, failed
	}
}

// choose returns the clients through which to try a connection to host, which has the address ip if
// that is valid. It waits for tunnels that are being made.
func (t *Tunnels) choose(ctx context.Context, host string, ip netip.Addr) ([]*client, error) {
	own, every := time.NewTimer(ownPatience), time.NewTimer(patience)
	defer own.Stop()
	defer every.Stop()
	for waitOwn, waitAny := true, true; ; {
		t.mu.Lock()
		through, pending, err := t.candidates(host, ip, waitOwn)
		changed := t.changed
		t.mu.Unlock()
		if len(through) > 0 || !pending || !waitAny {
			return through, err
		}
		select {
		case <-changed:
		case <-own.C:
			waitOwn = false
		case <-every.C:
			waitOwn, waitAny = false, false
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", err, context.Cause(ctx))
		case <-t.running.Done():
			return nil, errStopped
		}
	}
}

// candidates is choose without waiting. If it returns no client, err is the reason, and pending
// means that this may soon change. waitOwn means to wait for the tunnel to a Pod's own node even if
// another one is healthy. The caller holds mu.
func (t *Tunnels) candidates(host string, ip netip.Addr, waitOwn bool) (through []*client, pending bool, err error) {
	if !t.listed {
		return nil, true, fmt.Errorf("%w: the server has not read the list of nodes yet", ErrNoTunnel)
	}
	owner, router, err := t.claims(host, ip)
	switch {
	case err != nil:
		return nil, false, err
	case owner != nil && owner.client == nil:
		return nil, owner.state == stateConnecting, owner.failure()
	case owner != nil:
		return []*client{owner.client}, false, nil
	}
	var first *client
	if router != nil {
		if router.state == stateHealthy {
			first = router.client
		} else if router.pending() && waitOwn {
			return nil, true, fmt.Errorf("%w: that of the Pod's node is being made", ErrNoTunnel)
		}
	}
	var others []*client
	for _, n := range t.nodes {
		pending = pending || n.pending()
		if n.state == stateHealthy && n.client != first {
			others = append(others, n.client)
		}
	}
	rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	if first != nil {
		through = []*client{first}
	}
	through = append(through, others...)
	if len(through) == 0 {
		return nil, pending, t.noneHealthy(host)
	}
	return through[:min(len(through), mostTried)], false, nil
}

// claims returns the node that has the address, or the one that has its Pods there; nil means none.
//
// A node writes its own status.addresses, so these are claims. The server has proof of one address
// only: that at which it has reached the node's SSH server, whose key is pinned for this address. A
// node with this proof has the address. An address that several nodes claim without it is refused, and
// so is one that several nodes' PodCIDRs have. A node has no address in another node's PodCIDRs or in
// the range of Services. The caller holds mu.
func (t *Tunnels) claims(host string, ip netip.Addr) (owner, router *tunnel, err error) {
	var proved, claimed, routed []*tunnel
	service := ip.IsValid() && slices.ContainsFunc(t.config.Services, func(p netip.Prefix) bool { return p.Contains(ip) })
	for _, n := range t.nodes {
		if ip.IsValid() && n.routes(ip) {
			routed = append(routed, n)
		}
		switch {
		case service || !n.has(host, ip):
		case n.reached != "" && same(n.reached, host, ip):
			proved = append(proved, n)
		default:
			claimed = append(claimed, n)
		}
	}
	switch {
	case service:
		return nil, nil, nil
	case len(proved) > 0: // if there are several, one SSH server is behind all of them
		owner = firstOf(proved)
	case len(routed) > 0:
		// A node may have an address in its own range.
		if claimed = slices.DeleteFunc(claimed, func(n *tunnel) bool { return !slices.Contains(routed, n) }); len(claimed) > 0 {
			owner = firstOf(claimed)
		}
	case len(claimed) > 1:
		return nil, nil, disputed(host, "status.addresses", claimed)
	case len(claimed) == 1:
		return claimed[0], nil, nil
	}
	switch {
	case len(routed) > 1:
		return nil, nil, disputed(host, "spec.podCIDRs", routed)
	case len(routed) == 1 && owner != nil && owner != routed[0]:
		return nil, nil, disputed(host, "status.addresses and spec.podCIDRs", []*tunnel{owner, routed[0]})
	case owner != nil:
		return owner, nil, nil
	case len(routed) == 1:
		return nil, routed[0], nil
	}
	return nil, nil, nil
}

// firstOf is the tunnel whose node's name is the first one.
func firstOf(of []*tunnel) *tunnel {
	return slices.MinFunc(of, func(a, b *tunnel) int { return strings.Compare(a.name, b.name) })
}

// disputed is the error for an address that several nodes have in a field.
func disputed(host, field string, by []*tunnel) error {
	names := make([]string, 0, len(by))
	for _, n := range by {
		names = append(names, n.name)
	}
	slices.Sort(names)
	return fmt.Errorf("%w for %s: the nodes %s claim this address (%s): correct or delete those that do not have it", ErrNoTunnel, host, quote.First(names, ", "), field)
}

// noneHealthy is the error if there is no healthy tunnel. The caller holds mu.
func (t *Tunnels) noneHealthy(host string) error {
	if len(t.nodes) == 0 {
		return fmt.Errorf("%w for %s: the cluster has no nodes", ErrNoTunnel, host)
	}
	var causes []string
	for _, name := range slices.Sorted(maps.Keys(t.nodes)) {
		causes = append(causes, t.nodes[name].failure().Error())
	}
	return fmt.Errorf("%w for %s: %s", ErrNoTunnel, host, quote.First(causes, "; "))
}
