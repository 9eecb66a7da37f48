package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"

	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	netutils "k8s.io/utils/net"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/version"
	"github.com/karve-k8s/karve/simulate"
)

// checkSimulation says what is wrong about --simulate-nodes.
func checkSimulation(c Config, services []*net.IPNet) error {
	if c.SimulateNodes < 0 || c.SimulateNodes > simulate.Most {
		return fmt.Errorf("--simulate-nodes %d: want a number of nodes from 1 to %d, or 0 for none", c.SimulateNodes, simulate.Most)
	}
	if c.SimulateNodes == 0 || c.ClusterCIDR != "" {
		return nil
	}
	for _, s := range services {
		at, _ := netip.ParseAddr(s.IP.String())
		pods := simulate.PodRange(netutils.IsIPv6CIDR(s))
		if pods.Contains(at) || s.Contains(pods.Addr().AsSlice()) {
			return fmt.Errorf("--simulate-nodes: Pods of simulated nodes have addresses of %s, which overlaps --service-cluster-ip-range %s: name another range with --cluster-cidr", pods, s)
		}
	}
	return nil
}

// runSimulation has nodes in this process. They share the API server's informers.
func (s *controlPlane) runSimulation(ctx context.Context, ready func()) error {
	services, err := checkCIDRs("service-cluster-ip-range", s.ServiceClusterIPRange)
	if err != nil {
		return err
	}
	c := simulate.Config{Nodes: s.SimulateNodes, Version: version.Kubernetes, Client: s.clients().Config(certs.Admin), Kubelet: &s.kubelet, Log: s.log}
	for _, r := range services {
		c.IPv6 = append(c.IPv6, netutils.IsIPv6CIDR(r))
	}
	if err := s.withControllers(&c); err != nil {
		return err
	}
	// Who verifies kubelets (--kubelet-certificate-authority) trusts this one, if it has a key.
	if pair, err := tls.LoadX509KeyPair(s.certs.CertFile(certs.ServerCA), s.certs.KeyFile(certs.ServerCA)); err == nil {
		s.kubelet.Sign = &pair
	}
	shared := s.api.Load().Informers()
	c.PodInformer, c.NodeInformer = shared.Core().V1().Pods().Informer(), shared.Core().V1().Nodes().Informer()
	c.ClaimInformer, c.VolumeInformer = shared.Core().V1().PersistentVolumeClaims().Informer(), shared.Core().V1().PersistentVolumes().Informer()
	shared.StartWithContext(ctx) // they run already, unless authorization is the user's own
	return simulate.Run(ctx, c, ready)
}

// withControllers fills in what the controllers expect of nodes, and tells what nodes
// can't do without those who are left out.
func (s *controlPlane) withControllers(c *simulate.Config) error {
	if s.DisableScheduler {
		s.log.Warn("--simulate-nodes without scheduler: only Pods with a spec.nodeName will run")
	}
	if s.NoControllers {
		s.log.Warn("--simulate-nodes without controllers: nodes keep the taint node.kubernetes.io/not-ready, so only Pods that tolerate it, or have a spec.nodeName, will run")
		return nil
	}
	o, err := s.controllerOptions()
	if err != nil {
		return err
	}
	if !o.Runs(names.NodeLifecycleController) {
		s.log.Warnf("--simulate-nodes without the %s: nodes keep the taint node.kubernetes.io/not-ready, so only Pods that tolerate it, or have a spec.nodeName, will run", names.NodeLifecycleController)
	}
	c.Grace = o.NodeLifecycleController.NodeMonitorGracePeriod.Duration
	c.PodCIDRs = o.KubeCloudShared.AllocateNodeCIDRs && o.Runs(names.NodeIpamController)
	return nil
}
