package status

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	nodeutil "k8s.io/component-helpers/node/util"
)

// facts are what is known about a cluster. What could not be read is not known, and nothing is said
// about it.
type facts struct {
	nodes      []corev1.Node // no simulated ones
	daemonSets []daemonSet   // of all namespaces
	daemonsRead,
	dnsRead,
	configRead bool
	dns        []service // of the cluster's DNS
	clusterDNS []string  // in kubelet-config
}

type daemonSet struct {
	Metadata struct {
		Name, Namespace string
		Labels          map[string]string
	}
	Status struct {
		DesiredNumberScheduled, NumberReady int
	}
}

type service struct {
	Metadata struct{ Name string }
	Spec     struct{ ClusterIP string }
	ready    int // endpoints
	counted  bool
}

const (
	proxyName     = "kube-proxy"
	dnsLabel      = "k8s-app=kube-dns"
	kubeletConfig = "kubelet-config"
)

// proxies are DaemonSets of network plugins that can do kube-proxy's work. Whether they do depends on
// their configuration.
var proxies = []string{"cilium", "kube-router", "antrea-agent", "ovnkube-node", "calico-node"}

// facts reads what decides about lacks.
func (s server) facts(ctx context.Context, nodes []corev1.Node) *facts {
	f := &facts{nodes: nodes}
	var sets struct{ Items []daemonSet }
	if s.get(ctx, "/apis/apps/v1/daemonsets", &sets) == nil {
		f.daemonSets, f.daemonsRead = sets.Items, true
	}
	var services struct{ Items []service }
	if s.get(ctx, "/api/v1/namespaces/kube-system/services?labelSelector="+url.QueryEscape(dnsLabel), &services) == nil {
		f.dns, f.dnsRead = services.Items, true
		for i := range f.dns {
			s.countReady(ctx, &f.dns[i])
		}
	}
	f.clusterDNS, f.configRead = s.clusterDNS(ctx)
	return f
}

// countReady counts the ready endpoints of a Service.
func (s server) countReady(ctx context.Context, to *service) {
	var slices struct {
		Items []struct {
			Endpoints []struct {
				Conditions struct{ Ready *bool }
			}
		}
	}
	selector := url.QueryEscape("kubernetes.io/service-name=" + to.Metadata.Name)
	if s.get(ctx, "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices?labelSelector="+selector, &slices) != nil {
		return
	}
	to.counted = true
	for _, slice := range slices.Items {
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready { // as the API defines it
				to.ready++
			}
		}
	}
}

// clusterDNS is what machines that join with kubeadm are told. It is not known if there is no
// kubelet-config: the nodes have then joined in another way.
func (s server) clusterDNS(ctx context.Context) (addresses []string, known bool) {
	var config struct{ Data map[string]string }
	if s.get(ctx, "/api/v1/namespaces/kube-system/configmaps/"+kubeletConfig, &config) != nil {
		return nil, false
	}
	var kubelet struct {
		ClusterDNS []string `yaml:"clusterDNS"`
	}
	if yaml.Unmarshal([]byte(config.Data["kubelet"]), &kubelet) != nil {
		return nil, false
	}
	return kubelet.ClusterDNS, true
}

// lacks names what is missing, and what to do about it.
func (f *facts) lacks() (all []Lack) {
	add := func(do, format string, args ...any) { all = append(all, Lack{fmt.Sprintf(format, args...), do}) }
	f.addNetwork(add)
	f.addProxy(add)
	f.addDNS(add)
	return all
}

// addNetwork is about network plugins. One that gives addresses itself needs no podCIDR, so a node without
// one lacks it only if it has no network.
func (f *facts) addNetwork(add func(do, format string, args ...any)) {
	var without, withoutRange []string
	for _, n := range f.nodes {
		_, c := nodeutil.GetNodeCondition(&n.Status, corev1.NodeReady)
		if c == nil || c.Status == corev1.ConditionTrue {
			continue
		}
		if strings.Contains(c.Message, "NetworkPluginNotReady") || strings.Contains(c.Message, "NetworkReady=false") {
			without = append(without, n.Name)
			if n.Spec.PodCIDR == "" {
				withoutRange = append(withoutRange, n.Name)
			}
		}
	}
	if len(without) > 0 {
		add("install a network plugin, such as flannel's DaemonSet, or a file in /etc/cni/net.d of a single node", "no network plugin is ready on %s: no Pod starts there", some(without))
	}
	if len(withoutRange) > 0 {
		add("the log of the server says why it assigns none, and --cluster-cidr names a range; a network plugin with addresses of its own needs none", "%s has no podCIDR: flannel and the bridge plugin need one", some(withoutRange))
	}
}

func (f *facts) addProxy(add func(do, format string, args ...any)) {
	if !f.daemonsRead {
		return
	}
	found := false
	for _, d := range f.daemonSets {
		if d.Metadata.Name == proxyName || d.Metadata.Labels["k8s-app"] == proxyName {
			found = true
			if ready, want := d.Status.NumberReady, d.Status.DesiredNumberScheduled; ready < want {
				add("karve kubectl -n "+d.Metadata.Namespace+" describe pods -l k8s-app=kube-proxy says why",
					"kube-proxy is ready on %d of %d nodes: Services cannot be reached from the others", ready, want)
			}
		}
		found = found || slices.Contains(proxies, d.Metadata.Name)
	}
	if !found {
		add("karve addons apply kube-proxy", "no kube-proxy: Services cannot be reached from nodes and Pods")
	}
}

func (f *facts) addDNS(add func(do, format string, args ...any)) {
	if !f.dnsRead {
		return
	}
	const joined = "; nodes that have joined take it with kubeadm upgrade node, or karve node upgrade"
	if len(f.dns) == 0 {
		if len(f.clusterDNS) > 0 {
			add("karve addons apply coredns", "no DNS: Pods cannot look up names, although %s makes them ask %s", kubeletConfig, strings.Join(f.clusterDNS, ", "))
		} else {
			add("karve addons apply coredns", "no DNS: Pods cannot look up the names of Services")
		}
		return
	}
	var addresses []string
	for _, d := range f.dns {
		addresses = append(addresses, d.Spec.ClusterIP)
		if d.counted && d.ready == 0 {
			add("karve kubectl -n kube-system describe pods -l "+dnsLabel+" says why", "DNS has no ready Pod behind Service %s: Pods cannot look up names", d.Metadata.Name)
		}
	}
	if !f.configRead {
		return
	}
	follows := "a restart of the server writes " + addresses[0] + " into it, unless somebody has edited it; then karve kubectl -n kube-system edit configmap kubelet-config does"
	if len(f.clusterDNS) == 0 {
		add(follows+joined, "%s has no clusterDNS, so Pods do not ask the cluster's DNS", kubeletConfig)
		return
	}
	for _, a := range f.clusterDNS {
		// A cache on each node has a link-local address.
		if ip, err := netip.ParseAddr(a); slices.Contains(addresses, a) || err == nil && ip.IsLinkLocalUnicast() {
			return
		}
	}
	add(follows+joined, "%s makes Pods ask %s, but DNS is at %s", kubeletConfig, strings.Join(f.clusterDNS, ", "), strings.Join(addresses, ", "))
}

// some is a list of names that may be long.
func some(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
