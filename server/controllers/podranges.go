package controllers

import (
	"context"
	"fmt"
	"net"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	controllerconfig "k8s.io/kubernetes/cmd/kube-controller-manager/app/config"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	netutils "k8s.io/utils/net"
)

// Constants that upstream does not export.
const (
	// The sizes of a node's range, unless a user names others.
	nodeMaskIPv4 = 24
	nodeMaskIPv6 = 64
	// The largest difference between the masks of an IPv6 range and its parts
	// (cidrset.ErrCIDRSetSubNetTooBig).
	widestIPv6 = 16
)

// AssignsPodRanges reports whether the options make a controller give each node a range of Pod
// addresses. If the range is a default, the nodes of the cluster may still prevent it:
// [Controllers.AssignsPodRanges] has the answer.
func (u *Upstream) AssignsPodRanges() bool {
	return u.KubeCloudShared.AllocateNodeCIDRs && u.KubeCloudShared.ClusterCIDR != "" && u.Runs(names.NodeIpamController)
}

// AssignsPodRanges waits until the controllers have looked at the nodes of the cluster, and
// reports whether one of them gives each node a range of Pod addresses.
func (c *Controllers) AssignsPodRanges(ctx context.Context) (bool, error) {
	now, err := c.await(ctx, func(r *run) <-chan struct{} { return r.podsDecided })
	if err != nil {
		return false, err
	}
	return now.assignsPods, nil
}

// keepPodRanges switches the assignment of Pod ranges off if the range is a default, and a node has a range outside it.
// Upstream's node IPAM controller would refuse to start. A Node keeps its range for good. With a range that the user has
// named, a node outside it is an error that names the ways out.
func (c *Controllers) keepPodRanges(ctx context.Context, config *controllerconfig.Config) error {
	now, o, assigned := c.current.Load(), c.options.Upstream, &config.ComponentConfig.KubeCloudShared
	now.assignsPods = o.AssignsPodRanges()
	if now.assignsPods {
		nodes, err := config.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return fmt.Errorf("read the Pod ranges of nodes: %w", err)
		}
		node, pods := misfit(nodes.Items, assigned.ClusterCIDR)
		if node != "" && !o.podsChosen {
			return fmt.Errorf("node %s has the Pod range %s, which is not in --cluster-cidr %s, and a Node keeps its range: "+
				"name the range that the nodes have; or delete the Node, if nobody needs it; or, if a network plugin gives Pods addresses of its own, let this server assign none: --cluster-cidr %s --kube-controller-manager-arg allocate-node-cidrs=false",
				node, pods, assigned.ClusterCIDR, assigned.ClusterCIDR)
		}
		if node != "" {
			now.assignsPods, assigned.AllocateNodeCIDRs = false, false
			if c.options.NoPodRanges != nil {
				c.options.NoPodRanges(node, pods, assigned.ClusterCIDR)
			}
		}
	}
	close(now.podsDecided)
	return nil
}

// misfit returns the name of a node with a Pod range outside the cluster's, and that range.
func misfit(nodes []corev1.Node, clusterCIDR string) (node, pods string) {
	for _, n := range nodes {
		if pods := outside(n.Spec, clusterCIDR); pods != "" {
			return n.Name, pods
		}
	}
	return "", ""
}

// outside returns the first Pod range of a node that is not in the cluster's. The node's first has to
// be in the cluster's first, and the second in the second.
func outside(node corev1.NodeSpec, clusterCIDR string) string {
	ranges := strings.Split(clusterCIDR, ",")
	for i, cidr := range node.PodCIDRs {
		if i >= len(ranges) {
			return cidr
		}
		_, all, err := net.ParseCIDR(ranges[i])
		_, pods, err2 := net.ParseCIDR(cidr)
		if err != nil || err2 != nil || !all.Contains(pods.IP) || len(pods.IP) != len(all.IP) {
			return cidr
		}
		if maskSize(pods) < maskSize(all) {
			return cidr
		}
	}
	return ""
}

func maskSize(n *net.IPNet) int {
	ones, _ := n.Mask.Size()
	return ones
}

// checkNodeMasks returns what the constructor of the node IPAM controller would refuse, which
// upstream's validation does not look at: the sizes of the nodes' ranges.
func (u *Upstream) checkNodeMasks() error {
	if !u.AssignsPodRanges() {
		return nil
	}
	cidrs, err := netutils.ParseCIDRs(strings.Split(u.KubeCloudShared.ClusterCIDR, ","))
	if err != nil {
		return nil // reported with --cluster-cidr
	}
	const (
		arg   = "--kube-controller-manager-arg "
		whole = "node-cidr-mask-size"
		v4    = "node-cidr-mask-size-ipv4"
		v6    = "node-cidr-mask-size-ipv6"
		none  = arg + "allocate-node-cidrs=false assigns no Pod ranges"
	)
	given := map[string]int32{
		whole: u.NodeIPAMController.NodeCIDRMaskSize, v4: u.NodeIPAMController.NodeCIDRMaskSizeIPv4, v6: u.NodeIPAMController.NodeCIDRMaskSizeIPv6,
	}
	six := netutils.IsIPv6CIDR(cidrs[0])
	switch {
	case len(cidrs) > 1 && given[whole] != 0:
		return fmt.Errorf("%s%s=%d: the Pod ranges %s are of both families: use %s and %s; %s", arg, whole, given[whole], u.KubeCloudShared.ClusterCIDR, v4, v6, none)
	case given[whole] != 0 && (given[v4] != 0 || given[v6] != 0):
		return fmt.Errorf("%s%s=%d: leave it out beside %s and %s", arg, whole, given[whole], v4, v6)
	case len(cidrs) == 1 && six && given[v4] != 0:
		return fmt.Errorf("%s%s=%d: the Pod range %s is of IPv6 only: leave it out, or use %s", arg, v4, given[v4], cidrs[0], v6)
	case len(cidrs) == 1 && !six && given[v6] != 0:
		return fmt.Errorf("%s%s=%d: the Pod range %s is of IPv4 only: leave it out, or use %s", arg, v6, given[v6], cidrs[0], v4)
	}
	for _, cidr := range cidrs {
		option, size := v4, int32(nodeMaskIPv4)
		if netutils.IsIPv6CIDR(cidr) {
			option, size = v6, nodeMaskIPv6
		}
		if given[option] != 0 {
			size = given[option]
		} else if given[whole] != 0 {
			option, size = whole, given[whole]
		}
		switch {
		case maskSize(cidr) > int(size):
			return fmt.Errorf("--cluster-cidr %s: a node's part is a /%d, which is larger: name a larger range, or smaller parts with %s%s; %s", cidr, size, arg, option, none)
		case netutils.IsIPv6CIDR(cidr) && int(size)-maskSize(cidr) > widestIPv6:
			return fmt.Errorf("--cluster-cidr %s: a node's part is a /%d, and upstream divides an IPv6 range into 2^%d parts at most: name a smaller range, or larger parts with %s%s; %s", cidr, size, widestIPv6, arg, option, none)
		case int(size) > len(cidr.Mask)*8:
			return fmt.Errorf("%s%s=%d: want %d at most", arg, option, size, len(cidr.Mask)*8)
		}
	}
	return nil
}
