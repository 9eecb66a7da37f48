package join

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	nodeutil "k8s.io/component-helpers/node/util"

	"github.com/karve-k8s/karve/nodes/join/ask"
)

// becomeReady waits until the kubelet has its certificate, gives the node a network, and waits
// until it is Ready.
func (j *joining) becomeReady(ctx context.Context) error {
	var client kubernetes.Interface
	if until(ctx, func() (err error) {
		// The kubelet writes the kubeconfig before it has the certificate that is named there.
		client, err = j.ownClient("")
		return err
	}) != nil {
		return fmt.Errorf("the kubelet got no certificate within %s: if `karve kubectl get certificatesigningrequests` on the server shows one for %s that is pending, approve it, and join again", j.Timeout, j.Name)
	}
	n := &corev1.Node{}
	// get is a condition of the Node.
	get := func(what string, is func() bool) func() error {
		return func() error {
			found, err := client.CoreV1().Nodes().Get(ctx, j.Name, metav1.GetOptions{})
			if err == nil {
				if n = found; !is() {
					err = errors.New(what)
				}
			}
			return err
		}
	}
	if until(ctx, get("", func() bool { return true })) != nil {
		return fmt.Errorf("the kubelet did not create the node %s within %s", j.Name, j.Timeout)
	}
	if !j.NoNetwork {
		if err := j.giveNetwork(ctx, func(waiting context.Context) ([]string, error) {
			err := until(waiting, get("the Node has no podCIDR", func() bool { return len(n.Spec.PodCIDRs) > 0 }))
			return n.Spec.PodCIDRs, err
		}); err != nil {
			return err
		}
	}
	if until(ctx, get("", func() bool { return ask.Alive(n) })) != nil {
		why := "it reports nothing"
		if _, ready := nodeutil.GetNodeCondition(&n.Status, corev1.NodeReady); ready != nil {
			why = ready.Message
		}
		if j.NoNetwork && strings.Contains(why, "cni") {
			j.Warn("the node %s is not Ready, because it has no network plugin yet: install one, as --no-network leaves that to you", j.Name)
			return nil
		}
		return fmt.Errorf("the node %s was not Ready within %s: %s", j.Name, j.Timeout, why)
	}
	return nil
}

// giveNetwork writes the CNI configuration, unless another plugin has one. assigned waits for the Node's part of the cluster's
// range: a controller assigns it as soon as the Node exists, so a longer time means that there is none.
func (j *joining) giveNetwork(ctx context.Context, assigned func(context.Context) ([]string, error)) error {
	if other := j.otherNetwork(j.runtime.configDir); other != "" {
		j.Warn("Pods use the network of %s, which was there before. If it is not for Pods, remove it, and join again", other)
		return nil
	}
	cidrs := strings.Split(j.PodCIDR, ",")
	if j.PodCIDR == "" {
		waiting, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		var err error
		if cidrs, err = assigned(waiting); err != nil {
			return fmt.Errorf("the cluster gave the node %s no part of %s for its Pods (%w). "+
				"If its server assigns none (--kube-controller-manager-arg allocate-node-cidrs=false, or node-ipam-controller among --disable-controllers), "+
				"join with --no-network if a network plugin brings Pods' addresses, or with --pod-cidr. "+
				"If the range is used up, which `karve kubectl describe node %s` on the server shows as the event CIDRNotAvailable, join with --pod-cidr",
				j.Name, j.cluster.PodSubnet, err, j.Name)
		}
		j.record.PodCIDRs = cidrs
	}
	if err := j.overlaps(cidrs); err != nil {
		return err
	}
	return j.put(j.record, file{path.Join(j.runtime.configDir, networkName), networkConfig(cidrs), 0o644})
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

// otherNetwork is the CNI configuration that containerd takes instead of Karve's: the first one in the order of names.
func (m *Machine) otherNetwork(dir string) string {
	entries, _ := os.ReadDir(m.path(dir))
	for _, e := range entries {
		if e.Name() < networkName && slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			return path.Join(dir, e.Name())
		}
	}
	return ""
}

// networkIsFree fails if the network that was asked for cannot be.
func (j *joining) networkIsFree(configDir string) error {
	if j.NoNetwork || j.PodCIDR == "" {
		return nil
	}
	if other := j.otherNetwork(configDir); other != "" {
		return fmt.Errorf("--pod-cidr %s: Pods here get the network of %s, which does not look at the option: leave the option out, or remove that network", j.PodCIDR, other)
	}
	return j.overlaps(strings.Split(j.PodCIDR, ","))
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
	config.Timeout, config.UserAgent = ask.RequestTimeout, "karve-node"
	return kubernetes.NewForConfig(config)
}

// until tries every half second, until there is no error or the context ends. Its error is the last one.
func until(ctx context.Context, try func() error) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, 500*time.Millisecond, true, func(context.Context) (bool, error) {
		if err := try(); err != nil && ctx.Err() == nil {
			last = err
		} else {
			return err == nil, nil
		}
		return false, nil
	})
	if err != nil && last != nil {
		return last
	}
	return err
}

var errNoNode = errors.New("this machine is no node that `karve node join` or install.sh made")
