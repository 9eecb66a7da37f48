package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	nodeutil "k8s.io/component-helpers/node/util"
)

// becomeReady waits until the kubelet has its certificate, gives the node a network, and waits
// until it is Ready.
func (m *Machine) becomeReady(ctx context.Context, r *record, o Options, c *cluster, rt containerRuntime) error {
	var client kubernetes.Interface
	if err := until(ctx, func() (ok bool, _ error) {
		// The kubelet writes the kubeconfig before it has the certificate that is named there.
		var err error
		client, err = m.ownClient("")
		return err == nil, nil
	}); err != nil {
		return fmt.Errorf("the kubelet got no certificate within %s: if `karve kubectl get certificatesigningrequests` on the server shows one for %s that is pending, approve it, and join again", o.Timeout, o.Name)
	}
	var last *corev1.Node
	get := func() error {
		n, err := client.CoreV1().Nodes().Get(ctx, o.Name, metav1.GetOptions{})
		if err == nil {
			last = n
		}
		return err
	}
	if err := until(ctx, func() (bool, error) { return get() == nil, nil }); err != nil {
		return fmt.Errorf("the kubelet did not create the node %s within %s", o.Name, o.Timeout)
	}
	if !o.NoNetwork {
		if err := m.giveNetwork(ctx, r, o, c, rt, get, &last); err != nil {
			return err
		}
	}
	if err := until(ctx, func() (bool, error) { return get() == nil && alive(last), nil }); err != nil {
		why := "it reports nothing"
		if _, ready := nodeutil.GetNodeCondition(&last.Status, corev1.NodeReady); ready != nil {
			why = ready.Message
		}
		if o.NoNetwork && strings.Contains(why, "cni") {
			o.Warn("the node %s is not Ready, because it has no network plugin yet: install one, as --no-network leaves that to you", o.Name)
			return nil
		}
		return fmt.Errorf("the node %s was not Ready within %s: %s", o.Name, o.Timeout, why)
	}
	return nil
}

// giveNetwork writes the CNI configuration, unless another plugin has one.
func (m *Machine) giveNetwork(ctx context.Context, r *record, o Options, c *cluster, rt containerRuntime, get func() error, last **corev1.Node) error {
	if other, err := m.otherNetwork(rt.configDir); err != nil {
		return err
	} else if other != "" {
		o.Warn("Pods use the network of %s, which was there before. If it is not for Pods, remove it, and join again", other)
		return nil
	}
	cidrs := strings.Split(o.PodCIDR, ",")
	if o.PodCIDR == "" {
		if c.podSubnet != "" {
			if err := awaitRange(ctx, o, c.podSubnet, get, last); err != nil {
				return err
			}
		}
		cidrs = (*last).Spec.PodCIDRs
		if len(cidrs) == 0 {
			cidrs = []string{ownPart(o.Name)}
			o.Say("the cluster gives nodes no Pod addresses: this one takes %s (--pod-cidr)", cidrs[0])
		} else {
			r.PodCIDRs = cidrs
		}
	}
	if err := m.overlaps(cidrs); err != nil {
		return err
	}
	return m.put(r, file{path.Join(rt.configDir, networkName), networkConfig(cidrs), 0o644})
}

// awaitRange waits until the Node has its part of podSubnet. A controller assigns it as soon as the Node
// exists, so a longer time means that there is none. The controllers run: they have signed the
// kubelet's certificate.
func awaitRange(ctx context.Context, o Options, podSubnet string, get func() error, last **corev1.Node) error {
	waiting, cancel := context.WithTimeout(ctx, o.rangePatience)
	defer cancel()
	var unread error
	if until(waiting, func() (bool, error) {
		unread = get()
		return unread == nil && (*last).Spec.PodCIDR != "", nil
	}) == nil {
		return nil
	}
	if unread != nil {
		return fmt.Errorf("the node %s cannot be read any more: %w: see on the server whether `karve status` is well, and join again", o.Name, unread)
	}
	return fmt.Errorf("the cluster gave the node %s no part of %s for its Pods within %s. "+
		"If its server assigns none (--kube-controller-manager-arg allocate-node-cidrs=false, or node-ipam-controller among --disable-controllers), "+
		"join with --no-network if a network plugin brings Pods' addresses, or with --pod-cidr. "+
		"If the range is used up, which `karve kubectl describe node %s` on the server shows as the event CIDRNotAvailable, join with --pod-cidr",
		o.Name, podSubnet, min(o.rangePatience, o.Timeout), o.Name)
}

// ownPart is a part of DefaultPodNetwork that depends on the node's name, so that two nodes hardly
// ever have the same.
func ownPart(name string) string {
	h := fnv.New32a()
	h.Write([]byte(name))
	base := netip.MustParsePrefix(DefaultPodNetwork).Addr().As4()
	base[2] = byte(h.Sum32())
	return netip.PrefixFrom(netip.AddrFrom4(base), 24).String()
}

// overlaps fails if a network of this machine has addresses of its Pods.
func (m *Machine) overlaps(cidrs []string) error {
	all, err := m.addresses()
	if err != nil {
		return err
	}
	for _, cidr := range cidrs {
		want, err := netip.ParsePrefix(cidr)
		if err != nil {
			return err
		}
		for _, a := range all {
			ip, ok := netip.AddrFromSlice(a.IP)
			bits, _ := a.Mask.Size()
			if !ok {
				continue
			}
			if have := netip.PrefixFrom(ip.Unmap(), bits); have.IsValid() && have.Overlaps(want) {
				return fmt.Errorf("the Pod addresses %s overlap with this machine's own network %s: choose others with --pod-cidr", cidr, have.Masked())
			}
		}
	}
	return nil
}

// otherNetwork is the CNI configuration that containerd takes before networkName, or instead of it.
// containerd takes the first in the order of names. It is an error if that cannot be Pods' network.
func (m *Machine) otherNetwork(dir string) (string, error) {
	entries, _ := os.ReadDir(m.path(dir))
	for _, e := range entries {
		if !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) || e.Name() == networkName {
			continue
		}
		file := path.Join(dir, e.Name())
		first := e.Name() < networkName
		switch {
		case m.onlyLoopback(file):
			if first {
				return "", fmt.Errorf("%s has only loopback, and containerd would take it as the network of Pods: rename it, so that its name comes after %s", file, networkName)
			}
		case !first && slices.ContainsFunc(otherTools, func(tool string) bool { return strings.Contains(e.Name(), tool) }):
		default:
			return file, nil
		}
	}
	return "", nil
}

// otherTools have networks for their own containers in the directory of CNI: not for Pods.
var otherTools = []string{"podman", "nerdctl", "crio"}

func (m *Machine) onlyLoopback(file string) bool {
	type plugin struct {
		Type string `json:"type"`
	}
	var config struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if json.Unmarshal([]byte(m.read(file)), &config) != nil {
		return false
	}
	all := config.Plugins
	if len(all) == 0 {
		all = []plugin{config.plugin}
	}
	return !slices.ContainsFunc(all, func(p plugin) bool { return p.Type != "loopback" })
}

// checkNetwork fails before anything is changed if the network that was asked for cannot be.
func (m *Machine) checkNetwork(o Options, configDir string) error {
	if o.NoNetwork {
		return nil
	}
	other, err := m.otherNetwork(configDir)
	if err != nil || o.PodCIDR == "" {
		return err
	}
	if other != "" {
		return fmt.Errorf("--pod-cidr %s: Pods here get the network of %s, which does not look at the option: leave the option out, or remove that network", o.PodCIDR, other)
	}
	return m.overlaps(strings.Split(o.PodCIDR, ","))
}

// ownClient has the kubelet's own certificate. The server is the kubelet's if it is empty.
func (m *Machine) ownClient(server string) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags(server, m.path(kubeconfigFile))
	if err != nil {
		return nil, err
	}
	// Otherwise client-go keeps a connection by the files' names, with the certificate that they had before a renewal.
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, err
	}
	config.Timeout, config.UserAgent = requestTimeout, "karve-node"
	return kubernetes.NewForConfig(config)
}

// until asks every half second, until the answer is yes or the context ends.
func until(ctx context.Context, yes func() (bool, error)) error {
	return wait.PollUntilContextCancel(ctx, 500*time.Millisecond, true, func(context.Context) (bool, error) { return yes() })
}

// isGone tells whether the Node was deleted, or its certificate is no longer accepted.
func isGone(err error) bool { return apierrors.IsNotFound(err) || notAccepted(err) }

var errNoNode = errors.New("this machine is no node that `karve node join` or install.sh made")
