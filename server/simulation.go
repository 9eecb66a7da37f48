package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/netip"
	"sync"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	netutils "k8s.io/utils/net"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/version"
	"github.com/karve-k8s/karve/server/election"
	"github.com/karve-k8s/karve/server/sharedinformers"
	"github.com/karve-k8s/karve/simulate"
	"github.com/karve-k8s/karve/simulate/groups"
)

// parseSimulation reports the problems of --simulate-nodes.
func (d *draft) parseSimulation() {
	kinds, nodes, err := groups.ParseAll(d.SimulateNodes, simulate.Most)
	if err != nil {
		d.add(err)
		return
	}
	d.nodeGroups = kinds
	if nodes == 0 && len(d.SimulatePods)+len(d.SimulateListen) > 0 {
		d.addf("--%s and --%s are for simulated nodes: add --simulate-nodes N, or leave them out", simulate.PodsOption, simulate.ListenOption)
		return
	}
	d.podTargets, err = simulate.ParseTargets(d.SimulateListen)
	d.add(err)
	for _, at := range d.podTargets {
		for _, own := range d.ports {
			if own.Number == int(at.Port()) {
				d.addf("--%s %s: its port is that of --%s, and Pods' clients must reach no port of the server: name another port", simulate.ListenOption, at, own.Option)
			}
		}
	}
	if err == nil {
		d.podDefaults, err = simulate.ParseDefaults(d.SimulatePods, d.podTargets)
		d.add(err)
	}
	if nodes == 0 || d.ClusterCIDR != "" {
		return
	}
	for _, s := range d.services {
		at, _ := netip.ParseAddr(s.IP.String())
		pods := simulate.PodRange(netutils.IsIPv6CIDR(s))
		if pods.Contains(at) || s.Contains(pods.Addr().AsSlice()) {
			d.addf("--simulate-nodes: Pods of simulated nodes have addresses of %s, which overlaps --service-cluster-ip-range %s: name another range with --cluster-cidr", pods, s)
		}
	}
}

// simulatedNodes returns how many nodes there are in all groups; parseSimulation reports what is wrong.
func (c Config) simulatedNodes() int {
	_, nodes, _ := groups.ParseAll(c.SimulateNodes, simulate.Most)
	return nodes
}

// simulation is the part that runs the simulated nodes. They use the API server's informers. Of
// several servers, the one that runs the controllers simulates the nodes.
type simulation struct {
	config   simulate.Config
	election *election.Election // the controllers'
	kubelet  simulate.Kubelet   // the kubelet API of all nodes; the API server connects to it
	connect  func() simulationConnection
}

// simulationConnection is what the part gets from other parts.
type simulationConnection struct {
	client       *rest.Config // an administrator's
	informers    sharedinformers.Lasting
	certificates *certs.Store
}

// newSimulation sets what the controllers expect of nodes. It warns about what simulated nodes
// cannot do without controllers or a scheduler.
func newSimulation(p *plan, notice func(string), connect func() simulationConnection) *simulation {
	s := &simulation{election: p.election, connect: connect}
	s.config = simulate.Config{Nodes: p.simulatedNodes(), Groups: p.nodeGroups, Version: version.Kubernetes, Kubelet: &s.kubelet, Notice: notice, Log: p.Log,
		Defaults: simulate.Defaults{Pods: p.podDefaults, Targets: p.podTargets}}
	for _, r := range p.services {
		s.config.IPv6 = append(s.config.IPv6, netutils.IsIPv6CIDR(r))
	}
	if p.scheduler == nil {
		p.Log.Warn("--simulate-nodes without a scheduler: only Pods with a spec.nodeName will run")
	}
	if p.controllers == nil {
		warnNotReady(p.Log, "controllers")
		return s
	}
	if !p.controllers.Runs(names.NodeLifecycleController) {
		warnNotReady(p.Log, "the "+names.NodeLifecycleController)
	}
	s.config.Grace = p.controllers.NodeLifecycleController.NodeMonitorGracePeriod.Duration
	s.config.PodCIDRs = p.controllers.KubeCloudShared.AllocateNodeCIDRs && p.controllers.Runs(names.NodeIpamController)
	return s
}

func warnNotReady(log *logrus.Logger, without string) {
	log.Warnf("--simulate-nodes without %s: nodes keep the taint node.kubernetes.io/not-ready, so only Pods that tolerate it, or have a spec.nodeName, will run", without)
}

// Run simulates the nodes until ctx ends.
func (s *simulation) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from := s.connect()
	// An API server that verifies kubelets (--kubelet-certificate-authority) trusts this CA. It
	// can only sign if its key is here.
	if pair, err := tls.LoadX509KeyPair(from.certificates.SignerFile(certs.ServerCA), from.certificates.KeyFile(certs.ServerCA)); err == nil {
		s.kubelet.Sign = &pair
	}
	c, core := s.config, from.informers.Core().V1()
	c.Client = from.client
	c.PodInformer, c.NodeInformer, c.NamespaceInformer = core.Pods().Informer(), core.Nodes().Informer(), core.Namespaces().Informer()
	c.ClaimInformer, c.VolumeInformer = core.PersistentVolumeClaims().Informer(), core.PersistentVolumes().Informer()
	from.informers.StartWithContext(ctx) // they run already, unless the user configured authorization
	if err := s.keepMetrics(ctx, from.client); err != nil {
		return err
	}
	ready = sync.OnceFunc(ready)
	return s.election.Follow(ctx, ready, func(ctx context.Context, term *election.Term) error {
		c.Client = term.Fence(from.client)
		return simulate.Run(ctx, c, ready)
	})
}

// noticeSimulated tells of simulated nodes that an earlier start has left. Nobody renews their leases, and Pods may still be assigned to them.
func (s *controlPlane) noticeSimulated(ctx context.Context, client kubernetes.Interface) {
	left, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: simulate.NodeLabel})
	if err == nil && len(left.Items) > 0 {
		s.notice(fmt.Sprintf("%d simulated nodes of an earlier start are still there, and nothing runs on them. Start with --simulate-nodes, or remove them: kubectl delete node -l %s", len(left.Items), simulate.NodeLabel))
	}
}
