package join

import (
	"context"
	"errors"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Follow does what a kubelet does not. It gives the network of Pods the range of the Node: a Node that was deleted and
// registers again gets another one. And it gives the kubelet the authorities by which the cluster has replaced its own. The service
// [followService] runs it whenever the kubelet starts, because a kubelet registers only then, and once an hour. The server may be
// away for as long as it likes.
func Follow(ctx context.Context, m *Machine, o Options) error {
	if err := m.supported(); err != nil {
		return err
	}
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		r, err := m.readRecord()
		if err != nil || r == nil {
			return err
		}
		if n, err := m.ownNode(ctx, r); err != nil {
			o.Say("the Node %s cannot be read yet: %v", r.Node, err)
		} else if len(r.PodCIDRs) > 0 && len(n.Spec.PodCIDRs) == 0 {
			o.Say("the Node %s has no podCIDR yet", r.Node)
		} else if err := m.follow(ctx, r, o, n); err != nil {
			o.Say("the network of Pods does not follow the Node yet: %v", err)
		} else {
			return m.takeAuthorities(ctx, r, o) // a failure is for the next hour
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

func (m *Machine) ownNode(ctx context.Context, r *record) (*corev1.Node, error) {
	client, err := m.ownClient("")
	if err != nil {
		return nil, err
	}
	return client.CoreV1().Nodes().Get(ctx, r.Node, metav1.GetOptions{})
}

// strays tells whether the network of Pods has the range of an earlier Node.
func strays(r *record, n *corev1.Node) bool {
	return len(r.PodCIDRs) > 0 && len(n.Spec.PodCIDRs) > 0 && !slices.Equal(r.PodCIDRs, n.Spec.PodCIDRs)
}

// follow gives the network the Node's range, and ends the Pods that have other addresses: the cluster may give
// those to another node at any time. The kubelet starts them again. The record is last: if this is interrupted,
// the next attempt does all of it.
func (m *Machine) follow(ctx context.Context, r *record, o Options, n *corev1.Node) error {
	if !strays(r, n) {
		return nil
	}
	i := slices.IndexFunc(r.Files, func(file string) bool { return path.Base(file) == networkName })
	if i < 0 || len(r.PodCIDRs) != len(n.Spec.PodCIDRs) {
		return errors.New("the network of Pods cannot get the Node's range: remove the node, and join again")
	}
	text := m.read(r.Files[i]) + "\n"
	var networks []netip.Prefix
	for k, cidr := range n.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return err
		}
		networks = append(networks, p)
		text = strings.ReplaceAll(text, strconv.Quote(r.PodCIDRs[k]), strconv.Quote(cidr))
	}
	if err := m.put(r, file{r.Files[i], text, 0o644}); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	ended, err := m.stopPods(limited, networks)
	if err != nil {
		return err
	}
	o.Say("Pods get addresses of %s now, as the Node says, instead of %s; %d that had others start again", strings.Join(n.Spec.PodCIDRs, ","), strings.Join(r.PodCIDRs, ","), ended)
	r.PodCIDRs = n.Spec.PodCIDRs
	return m.writeRecord(r)
}
