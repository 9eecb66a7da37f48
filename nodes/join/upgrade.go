package join

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	if notAccepted(err) {
		return errors.New(gone(r, err))
	} else if err != nil {
		return explainConnection(o.Server, err)
	}
	version, err := utilversion.ParseSemantic(v.GitVersion)
	if err != nil {
		return fmt.Errorf("%s has the version %q: %w", o.Server, v.GitVersion, err)
	}
	if o.Server != r.Server {
		if err := m.moveTo(ctx, r, o, client); err != nil {
			return err
		}
	}
	if err := m.takeDNS(ctx, r, o, client); err != nil {
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
	if plain := fmt.Sprintf("v%d.%d.%d", version.Major(), version.Minor(), version.Patch()); o.Kubelet == "" && r.Version == plain {
		o.Say("the kubelet is %s already, as the server", r.Version)
		return nil
	}
	stage, err := m.stage()
	if err != nil {
		return err
	}
	defer os.RemoveAll(stage)
	k, err := m.fetchKubelet(ctx, o, version, stage)
	if err != nil {
		return err
	}
	old := stage + "/old"
	if err := os.Link(m.path(kubeletFile), old); err != nil {
		return err
	}
	if err := os.Rename(k.file, m.path(kubeletFile)); err != nil {
		return err
	}
	err = m.restartKubelet(ctx, client, r.Node, k.version, o.Timeout)
	if err == nil {
		r.Version = k.version
		o.Say("the kubelet is %s now", k.version)
		return m.writeRecord(r)
	}
	back := errors.Join(os.Rename(old, m.path(kubeletFile)), m.restart(context.WithoutCancel(ctx), "karve-node"))
	if back != nil {
		return fmt.Errorf("the kubelet %s was not Ready within %s, and the earlier one could not be started again (%w): %w", k.version, o.Timeout, back, err)
	}
	return fmt.Errorf("the kubelet %s was not Ready within %s (%w): the earlier one runs again. %s", k.version, o.Timeout, err, m.logHint(context.WithoutCancel(ctx)))
}

// moveTo gives the kubelet another address of its server, which has answered there.
func (m *Machine) moveTo(ctx context.Context, r *record, o Options, client kubernetes.Interface) error {
	config, err := clientcmd.LoadFromFile(m.path(kubeconfigFile))
	if err != nil {
		return err
	}
	for _, c := range config.Clusters {
		c.Server = o.Server
	}
	text, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(m.path(kubeconfigFile), text, 0o600); err != nil {
		return err
	}
	// The record is last: if this is interrupted, the next attempt does all of it.
	if err := m.restartKubelet(ctx, client, r.Node, r.Version, o.Timeout); err != nil {
		return fmt.Errorf("the kubelet was told that its server is %s, and was not Ready within %s (%w): try again. %s", o.Server, o.Timeout, err, m.logHint(context.WithoutCancel(ctx)))
	}
	r.Server = o.Server
	o.Say("the kubelet's server is %s now", r.Server)
	return m.writeRecord(r)
}

// dnsOf returns the addresses of the cluster's DNS in a KubeletConfiguration.
func dnsOf(config map[string]any) []any { all, _ := config["clusterDNS"].([]any); return all }

// takeDNS gives the kubelet the cluster's DNS if it has none: the node may have joined before there was one. What
// somebody has set on this machine stays.
func (m *Machine) takeDNS(ctx context.Context, r *record, o Options, client kubernetes.Interface) error {
	cluster, err := readKubelet(ctx, client, o.Server)
	if err != nil {
		o.Warn("whether the cluster has a DNS by now is not known: %v", err)
		return nil
	}
	old, err := os.ReadFile(m.path(kubeletConfig))
	if err != nil {
		return err
	}
	var config map[string]any
	if err := yaml.Unmarshal(old, &config); err != nil || config == nil {
		return fmt.Errorf("%s has no KubeletConfiguration (%v): repair it", kubeletConfig, err)
	}
	dns := dnsOf(cluster)
	if len(dns) == 0 || len(dnsOf(config)) > 0 {
		return nil
	}
	config["clusterDNS"] = dns
	text, err := kubeletText(config)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(m.path(kubeletConfig), []byte(text), 0o644); err != nil {
		return err
	}
	if err := m.restartKubelet(ctx, client, r.Node, r.Version, o.Timeout); err != nil {
		finishing := context.WithoutCancel(ctx)
		hint := m.logHint(finishing)
		back := errors.Join(atomicfile.Write(m.path(kubeletConfig), old, 0o644), m.restart(finishing, "karve-node"))
		return errors.Join(fmt.Errorf("the kubelet was given the cluster's DNS %v, and was not Ready within %s (%w): its configuration is as it was. %s", dns, o.Timeout, err, hint), back)
	}
	o.Say("the kubelet gives new Pods the cluster's DNS %v now; Pods that run keep what they have", dns)
	return nil
}

// restartKubelet waits until the new process reports that the node is Ready.
func (m *Machine) restartKubelet(ctx context.Context, client kubernetes.Interface, node, version string, timeout time.Duration) error {
	if err := m.restart(ctx, "karve-node"); err != nil {
		return err
	}
	began := time.Now()
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	last := "it has not asked for its Node"
	err := until(waiting, func() (bool, error) {
		n, err := client.CoreV1().Nodes().Get(waiting, node, metav1.GetOptions{})
		if err != nil {
			if waiting.Err() == nil {
				last = err.Error()
			}
			return false, nil
		}
		if got := n.Status.NodeInfo.KubeletVersion; got != version || !alive(n) {
			last = fmt.Sprintf("the Node reports the kubelet %s, and Ready is %t", got, alive(n))
			return false, nil
		}
		// The Node may still say what the old kubelet reported. The new one renews the Lease.
		lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(waiting, node, metav1.GetOptions{})
		last = "its Lease has not been renewed"
		return err == nil && lease.Spec.RenewTime != nil && lease.Spec.RenewTime.After(began), nil
	})
	if err != nil {
		return errors.New(last)
	}
	return nil
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

// renewal is the remedy if the cluster does not accept the kubelet's certificate.
const renewal = "`karve token create --print-install-command` on the server prints a line which, run here, gets it another one, and Pods keep running"

// gone says what to do where isGone is true.
func gone(r *record, err error) string {
	if apierrors.IsNotFound(err) {
		return fmt.Sprintf("the cluster no longer has the node %s: a restart of the kubelet (karve-node) registers it again. If it was removed for good: `karve node remove`", r.Node)
	}
	return fmt.Sprintf("the cluster does not accept the certificate of the node %s: %s", r.Node, renewal)
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
	case isGone(err):
		s.Problem = gone(r, err)
	case err != nil:
		s.Problem = explainConnection(r.Server, err).Error()
	default:
		s.Ready = alive(n)
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
