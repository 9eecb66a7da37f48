package join

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Follow does what a kubelet does not. It gives the network of Pods the range of the Node: a Node that was deleted and
// registers again gets another one. And it gives the kubelet the authorities by which the cluster has replaced its own. The service
// [followService] runs it whenever the kubelet starts, because a kubelet registers only then, and once an hour. The server may be
// away for as long as it likes.
func Follow(ctx context.Context, m *Machine, o Options) error {
	if err := m.supported(); err != nil {
		return err
	}
	if o.Say == nil {
		o.Say = func(string, ...any) {}
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
	if i < 0 {
		return errors.New("the record has no " + networkName)
	}
	cidrs := n.Spec.PodCIDRs
	before, after := networkConfig(r.PodCIDRs), networkConfig(cidrs)
	switch strings.TrimSpace(m.read(r.Files[i])) {
	case strings.TrimSpace(before), strings.TrimSpace(after):
	default:
		if !slices.ContainsFunc(cidrs, func(cidr string) bool { return !strings.Contains(m.read(r.Files[i]), strconv.Quote(cidr)) }) {
			after = m.read(r.Files[i]) + "\n"
			break
		}
		return fmt.Errorf("%s was changed by hand, and the Node has the Pod addresses %s now: write them into it, or remove the node and join again", r.Files[i], strings.Join(cidrs, ","))
	}
	if err := m.put(r, file{r.Files[i], after, 0o644}); err != nil {
		return err
	}
	ended, err := m.endStrays(ctx, r.Runtime, cidrs)
	if err != nil {
		return err
	}
	o.Say("Pods get addresses of %s now, as the Node says, instead of %s; %d that had others start again", strings.Join(cidrs, ","), strings.Join(r.PodCIDRs, ","), ended)
	r.PodCIDRs = cidrs
	return m.writeRecord(r)
}

// endStrays ends the Pods whose addresses are in none of the networks. A Pod in the host's network has none.
func (m *Machine) endStrays(ctx context.Context, socket string, cidrs []string) (ended int, err error) {
	var all []netip.Prefix
	for _, cidr := range cidrs {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return 0, err
		}
		all = append(all, p)
	}
	conn, err := m.dialCRI(socket)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	cri := runtimeapi.NewRuntimeServiceClient(conn)
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	list, err := cri.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return 0, fmt.Errorf("containerd does not say which Pods run: %w", err)
	}
	for _, pod := range list.Items {
		if pod.State != runtimeapi.PodSandboxState_SANDBOX_READY {
			continue
		}
		status, err := cri.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod.Id})
		if err != nil {
			continue // it has ended meanwhile
		}
		ip, err := netip.ParseAddr(status.GetStatus().GetNetwork().GetIp())
		if err != nil || slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			continue
		}
		if _, err := cri.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod.Id}); err != nil {
			return ended, fmt.Errorf("the Pod %s/%s could not be stopped: %w", pod.Metadata.GetNamespace(), pod.Metadata.GetName(), err)
		}
		ended++
	}
	return ended, nil
}
