package join

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/nodes/join/ask"
)

// Upgrade replaces the kubelet by that of the cluster's version, or by Options.Kubelet. Pods keep
// running meanwhile. If the new one does not become Ready, the old one returns. If Options.Server is
// given, that is the server's address from now on. A kubelet without a DNS gets the cluster's,
// a network of Pods with the range of an earlier Node gets the present one's, and a replacement of the
// cluster's authorities is followed.
func Upgrade(ctx context.Context, m *Machine, o Options) error {
	if err := m.supported(); err != nil {
		return err
	}
	r, err := m.readRecord()
	if err != nil {
		return err
	}
	if r == nil || !m.exists(kubeconfigFile) {
		return errNoNode
	}
	// What is not given again stays: these are only here to be valid.
	o.Name, o.Token, o.CAHashes = r.Node, "abcdef.0123456789abcdef", []string{"sha256:" + fmt.Sprintf("%064d", 0)}
	if o.Server == "" {
		o.Server = r.Server
	}
	if err := o.complete(); err != nil {
		return err
	}
	client, err := m.ownClient(o.Server)
	if err != nil {
		return err
	}
	v, err := client.Discovery().ServerVersion()
	if ask.NotAccepted(err) {
		return errors.New(gone(r, err))
	} else if err != nil {
		return ask.Explain(o.Server, err)
	}
	version, err := utilversion.ParseSemantic(v.GitVersion)
	if err != nil {
		return fmt.Errorf("%s has the version %q: %w", o.Server, v.GitVersion, err)
	}
	if err := m.upgrade(ctx, r, o, client, version); err != nil {
		return err
	}
	if n, err := m.ownNode(ctx, r); err == nil {
		if err := m.follow(ctx, r, o, n); err != nil {
			return err
		}
	}
	if err := m.takeAuthorities(ctx, r, o); err != nil {
		o.Warn("whether the cluster has replaced its authorities is not known: %v", err)
	}
	return nil
}

// upgrade gives the kubelet what is new: its server's address, the cluster's DNS and its program. If it does not become Ready with
// these, they are put back. The record is last: if this is interrupted, the next attempt does all of it.
func (m *Machine) upgrade(ctx context.Context, r *record, o Options, client kubernetes.Interface, version *utilversion.Version) error {
	var back []func() error
	var news []string
	replace := func(path string, text []byte, mode fs.FileMode) error {
		old, err := os.ReadFile(m.path(path))
		if err != nil {
			return err
		}
		back = append(back, func() error { return atomicfile.Write(m.path(path), old, mode) })
		return atomicfile.Write(m.path(path), text, mode)
	}
	change := func() error {
		if o.Server != r.Server {
			text, err := m.movedTo(o.Server)
			if err == nil {
				err = replace(kubeconfigFile, text, 0o600)
			}
			if err != nil {
				return err
			}
			news = append(news, "the kubelet's server is "+o.Server+" now")
		}
		if text, dns, err := m.withDNS(ctx, o, client); err != nil {
			return err
		} else if text != "" {
			if err := replace(kubeletConfig, []byte(text), 0o644); err != nil {
				return err
			}
			news = append(news, fmt.Sprintf("the kubelet gives new Pods the cluster's DNS %v now; Pods that run keep what they have", dns))
		}
		if plain := fmt.Sprintf("v%d.%d.%d", version.Major(), version.Minor(), version.Patch()); o.Kubelet == "" && r.Version == plain {
			return nil
		}
		stage, err := m.makeStage()
		if err != nil {
			return err
		}
		defer os.RemoveAll(stage)
		k, err := m.fetchKubelet(ctx, o, version, stage)
		if err != nil {
			return err
		}
		old := m.path(kubeletFile) + ".old"
		if err := removeIfThere(old); err != nil {
			return err
		}
		if err := os.Link(m.path(kubeletFile), old); err != nil {
			return err
		}
		back = append(back, func() error { return atomicfile.Rename(old, m.path(kubeletFile)) })
		r.Version = k.version
		news = append(news, "the kubelet is "+k.version+" now")
		return atomicfile.Rename(k.file, m.path(kubeletFile))
	}
	err := change()
	if err == nil && len(news) == 0 {
		o.Say("the kubelet is %s already, as the server", r.Version)
		return nil
	}
	if err == nil {
		err = m.restartKubelet(ctx, client, r.Node, r.Version, o.Timeout)
		if err != nil {
			err = fmt.Errorf("the kubelet %s was not Ready within %s (%w): it runs again as before. %s", r.Version, o.Timeout, err, m.logHint(context.WithoutCancel(ctx)))
		}
	}
	if err != nil {
		for _, undo := range slices.Backward(back) {
			err = errors.Join(err, undo())
		}
		if len(back) > 0 {
			err = errors.Join(err, m.restart(context.WithoutCancel(ctx), "karve-node"))
		}
		return err
	}
	r.Server = o.Server
	for _, text := range news {
		o.Say("%s", text)
	}
	return errors.Join(m.writeRecord(r), removeIfThere(m.path(kubeletFile)+".old"))
}

// movedTo is the kubelet's kubeconfig with another address of its server, which has answered there.
func (m *Machine) movedTo(server string) ([]byte, error) {
	config, err := clientcmd.LoadFromFile(m.path(kubeconfigFile))
	if err != nil {
		return nil, err
	}
	for _, c := range config.Clusters {
		c.Server = server
	}
	return clientcmd.Write(*config)
}

// dnsOf returns the addresses of the cluster's DNS in a KubeletConfiguration.
func dnsOf(config map[string]any) []any { all, _ := config["clusterDNS"].([]any); return all }

// withDNS is the kubelet's configuration with the cluster's DNS, if it has none: the node may have joined before there was one. What
// somebody has set on this machine stays. It is empty if nothing changes.
func (m *Machine) withDNS(ctx context.Context, o Options, client kubernetes.Interface) (text string, dns []any, err error) {
	cluster, err := ask.KubeletConfig(ctx, client, o.Server)
	if err != nil {
		o.Warn("whether the cluster has a DNS by now is not known: %v", err)
		return "", nil, nil
	}
	var config map[string]any
	if err := yaml.Unmarshal([]byte(m.read(kubeletConfig)), &config); err != nil || config == nil {
		return "", nil, fmt.Errorf("%s has no KubeletConfiguration (%v): repair it", kubeletConfig, err)
	}
	if dns = dnsOf(cluster); len(dns) == 0 || len(dnsOf(config)) > 0 {
		return "", nil, nil
	}
	config["clusterDNS"] = dns
	text, err = kubeletText(config)
	return text, dns, err
}

// restartKubelet waits until the new process reports that the node is Ready.
func (m *Machine) restartKubelet(ctx context.Context, client kubernetes.Interface, node, version string, timeout time.Duration) error {
	if err := m.restart(ctx, "karve-node"); err != nil {
		return err
	}
	began := time.Now()
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return until(waiting, func() error {
		n, err := client.CoreV1().Nodes().Get(waiting, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := n.Status.NodeInfo.KubeletVersion; got != version || !ask.Alive(n) {
			return fmt.Errorf("the Node reports the kubelet %s, and Ready is %t", got, ask.Alive(n))
		}
		// The Node may still say what the old kubelet reported. The new one renews the Lease.
		lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(waiting, node, metav1.GetOptions{})
		if err == nil && (lease.Spec.RenewTime == nil || !lease.Spec.RenewTime.After(began)) {
			err = errors.New("its Lease has not been renewed")
		}
		return err
	})
}

// State is what `karve node status` shows.
type State struct {
	Node    string `json:"node"`
	Server  string `json:"server"`
	Kubelet string `json:"kubelet"`
	Ready   bool   `json:"ready"`
	// Problem says why it is not ready, and what to do.
	Problem string `json:"problem,omitempty"`
	// Range says that Pods get addresses that are not the Node's, and what to do.
	Range string `json:"range,omitempty"`
	// Packages and files that Remove would take away.
	Packages []string `json:"packages,omitempty"`
	Files    []string `json:"files,omitempty"`
}

// gone says what to do if the Node was deleted, or its certificate is no longer accepted.
func gone(r *record, err error) string {
	if apierrors.IsNotFound(err) {
		return fmt.Sprintf("the cluster no longer has the node %s: a restart of the kubelet (karve-node) registers it again. If it was removed for good: `karve node remove`", r.Node)
	}
	return fmt.Sprintf("the cluster does not accept the certificate of the node %s: %s", r.Node, ask.Renewal)
}

// Status asks the cluster about this machine.
func Status(ctx context.Context, m *Machine) (State, error) {
	r, err := m.readRecord()
	if err != nil {
		return State{}, err
	}
	if r == nil {
		return State{}, errNoNode
	}
	s := State{Node: r.Node, Server: r.Server, Kubelet: r.Version, Packages: r.Packages, Files: r.Files}
	client, err := m.ownClient("")
	if err != nil {
		s.Problem = fmt.Sprintf("the kubelet has no certificate (%v): the join was not finished", err)
		return s, nil
	}
	n, err := client.CoreV1().Nodes().Get(ctx, r.Node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), ask.NotAccepted(err):
		s.Problem = gone(r, err)
	case err != nil:
		s.Problem = ask.Explain(r.Server, err).Error()
	default:
		s.Ready = ask.Alive(n)
		if strays(r, n) {
			s.Range = fmt.Sprintf("Pods here get addresses of %s, but the Node has %s, and another node may get the former: `karve node upgrade`", strings.Join(r.PodCIDRs, ","), strings.Join(n.Spec.PodCIDRs, ","))
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && !s.Ready {
				s.Problem = c.Message
			}
		}
	}
	return s, nil
}
