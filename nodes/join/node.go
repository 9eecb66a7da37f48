// Package join makes the machine on which it runs a node of a cluster, upgrades its kubelet, and
// removes everything again.
//
// Join tells the whole story. Everything that can be checked is checked before the machine is
// changed: the options (this file), the machine (machine.go), the cluster (discover.go,
// cluster.go), the kubelet (kubelet.go) and containerd (runtime.go). What is then changed is
// recorded in a file first (record.go), so that Remove finds it. Package node does not link the
// API server. DESIGN.md has the decisions.
package join

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/cert"
	tokenutil "k8s.io/cluster-bootstrap/token/util"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pubkeypin"

	"github.com/karve-k8s/karve/nodes/tunnels"
)

// Options are what a user decides about a node.
type Options struct {
	// Server is the URL of the API server, such as https://board.example:6443.
	Server string
	// Token is a bootstrap token, such as abcdef.0123456789abcdef.
	Token string
	// CAHashes pin the authority of the server's certificate and that of its clients, such as sha256:0123…
	CAHashes []string
	// CAFiles are those authorities themselves, instead of hashes.
	CAFiles []string
	// Name of the Node; the hostname if it is empty.
	Name string
	// IP is the address that the node reports; empty: the kubelet chooses.
	IP string
	// Labels and Taints are those with which the kubelet registers the Node, separated by commas: key=value, and
	// key=value:Effect or key:Effect.
	Labels, Taints string
	// PodCIDR are the addresses of this node's Pods; empty: those that the cluster gives the
	// node, or a part of DefaultPodNetwork.
	PodCIDR string
	// SSHUser is the user as whom the server logs in through SSH; its keys go into that user's
	// authorized_keys. Empty: the server connects directly, or the keys are put there by hand.
	SSHUser string
	// OwnServer says that the server is on this machine.
	OwnServer bool
	// NoNetwork leaves the network of Pods to a plugin that is installed otherwise.
	NoNetwork bool
	// Kubelet is a file to install; empty: the cluster's version is downloaded.
	Kubelet string
	// KubeletURL is the place of a mirror of DefaultKubeletURL.
	KubeletURL string
	// KubeletSHA256 is the checksum of the kubelet; empty: the one in this program or, unless Signed, that which
	// Kubernetes publishes.
	KubeletSHA256 string
	// Signed says that without KubeletSHA256 only the checksum in this program counts, which the signature of a release
	// covers.
	Signed bool
	// embedded are the sums in this program, and official is where Kubernetes publishes them.
	embedded, official string
	// Timeout is how long the node may take to become Ready.
	Timeout time.Duration
	// Patience is how long the token may be unknown; 0 stands for ten seconds.
	Patience time.Duration
	// rangePatience is how long the cluster may take to give the node a range for its Pods.
	rangePatience time.Duration
	// stall is how long a download may bring nothing.
	stall time.Duration
	// Say takes a line of progress.
	Say func(format string, args ...any)
	// Warn takes a line about something that may be wrong.
	Warn func(format string, args ...any)
}

// Defaults of Options.
const (
	DefaultKubeletURL = "https://dl.k8s.io/release"
	DefaultPodNetwork = "10.85.0.0/16"
	DefaultTimeout    = 5 * time.Minute
)

// complete fills in the defaults and reports every mistake.
func (o *Options) complete() error {
	if o.KubeletURL == "" {
		o.KubeletURL = DefaultKubeletURL
	}
	if o.official == "" {
		o.embedded, o.official = embeddedSums, DefaultKubeletURL
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Patience == 0 {
		o.Patience = signaturePatience
	}
	if o.rangePatience == 0 {
		o.rangePatience = time.Minute
	}
	if o.stall == 0 {
		o.stall = time.Minute
	}
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	if o.Warn == nil {
		o.Warn = o.Say
	}
	if o.Name == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("--node-name: this machine's name cannot be read (%w): give the option", err)
		}
		o.Name = strings.ToLower(strings.TrimSpace(name))
	}
	var wrong []error
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	const command = "`karve token create --print-install-command` on the server prints it"
	switch u, err := url.Parse(o.Server); {
	case o.Server == "":
		add("--server is missing: %s", command)
	case err == nil && u.Scheme == "http":
		add("--server %s: nodes need https; the insecure port is for the server's own machine", o.Server)
	case err != nil || u.Scheme != "https" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery != "":
		add("--server %q: want https://HOST:PORT", o.Server)
	default:
		o.Server = "https://" + u.Host
		if u.Port() == "" {
			o.Server = "https://" + net.JoinHostPort(u.Hostname(), "6443")
		}
	}
	switch { // never with the token in the text
	case o.Token == "":
		add("--token is missing: %s", command)
	case !tokenutil.IsValidBootstrapToken(o.Token):
		add("--token: want six characters, a dot and sixteen more: %s", command)
	}
	for _, file := range o.CAFiles {
		certificates, err := cert.CertsFromFile(file)
		if err != nil {
			add("--ca-file %s: %w", file, err)
		}
		for _, c := range certificates {
			o.CAHashes = append(o.CAHashes, pubkeypin.Hash(c))
		}
	}
	if len(o.CAHashes) == 0 && len(o.CAFiles) == 0 {
		add("--ca-hash is missing: %s", command)
	}
	for _, hash := range o.CAHashes {
		digits, ok := strings.CutPrefix(strings.ToLower(hash), "sha256:")
		if b, err := hex.DecodeString(digits); !ok || err != nil || len(b) != 32 {
			add("--ca-hash %q: want sha256: and 64 hexadecimal digits: %s", hash, command)
		}
	}
	if problems := validation.IsDNS1123Subdomain(o.Name); len(problems) > 0 {
		add("--node-name %q: want lower-case letters, digits, - and .", o.Name)
	}
	if o.IP != "" && net.ParseIP(o.IP) == nil {
		add("--node-ip %q: want an IP address", o.IP)
	}
	if err := o.parseLabels(); err != nil {
		add("--node-labels %q: %w", o.Labels, err)
	}
	if err := o.parseTaints(); err != nil {
		add("--node-taints %q: %w: want key=value:Effect, or key:Effect, with the effect NoSchedule, PreferNoSchedule or NoExecute", o.Taints, err)
	}
	if o.PodCIDR != "" {
		if _, err := parseCIDRs(o.PodCIDR); err != nil {
			add("--pod-cidr %w", err)
		}
		if o.NoNetwork {
			add("--pod-cidr and --no-network exclude each other: remove one")
		}
	}
	if o.SSHUser != "" && tunnels.CheckUser(o.SSHUser) != nil {
		add("--ssh-user %q: not the name of a user", o.SSHUser)
	}
	if o.Kubelet != "" && o.KubeletURL != DefaultKubeletURL {
		add("--kubelet and --kubelet-url exclude each other: remove one")
	}
	if u, err := url.Parse(o.KubeletURL); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		add("--kubelet-url %q: want https://HOST/PATH, a mirror of %s", o.KubeletURL, DefaultKubeletURL)
	} else if u.Scheme == "http" && o.KubeletSHA256 == "" {
		add("--kubelet-url %s: http protects nothing: use https, or give the checksum with --kubelet-sha256", o.KubeletURL)
	}
	if b, err := hex.DecodeString(o.KubeletSHA256); err != nil || len(b) != 0 && len(b) != 32 {
		add("--kubelet-sha256 %q: want 64 hexadecimal digits", o.KubeletSHA256)
	}
	if o.Timeout < 0 {
		add("--timeout %s: want a positive duration", o.Timeout)
	}
	return errors.Join(wrong...)
}

// parseCIDRs parses one network, or one of each family with a comma between.
func parseCIDRs(text string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(part))
		if err != nil || p != p.Masked() || p.Addr().BitLen()-p.Bits() < 3 {
			return nil, fmt.Errorf("%q: want a network with room for Pods, such as 10.85.1.0/24", part)
		}
		if slices.ContainsFunc(all, func(o netip.Prefix) bool { return o.Addr().Is4() == p.Addr().Is4() }) {
			return nil, fmt.Errorf("%q: want one network of each family", text)
		}
		all = append(all, p)
	}
	return all, nil
}

// Join makes this machine a node. If it fails, it leaves the machine as it found it. On a machine that is the node
// already, it changes nothing, unless the cluster no longer accepts the kubelet's certificate: then it gets another one,
// and Pods keep running.
func Join(ctx context.Context, m *Machine, o Options) (err error) {
	if err := m.supported(); err != nil {
		return err
	}
	wrong := o.complete()
	if old, err := m.readRecord(); err != nil {
		return err
	} else if old != nil {
		switch done := m.exists(kubeconfigFile) && !m.exists(bootstrapFile); {
		case !done:
			return fmt.Errorf("an earlier attempt to join %s was interrupted: remove what it left with `karve node remove`, then join again", old.Server)
		case wrong == nil && old.Node == o.Name:
			if err := m.joinAgain(ctx, old, o); err != nil {
				return err
			}
			if o.SSHUser != "" && (old.SSH == nil || old.SSH.User != o.SSHUser) {
				o.Warn("--ssh-user %s was not looked at: put the line of `karve ssh public-key` into that user's %s by hand, or remove the node and join again", o.SSHUser, authorizedKeys)
			}
			return nil
		}
		return already(old)
	}
	if wrong != nil {
		return wrong
	}
	if o.IP != "" && !m.hasAddress(o.IP) {
		return fmt.Errorf("--node-ip %s: this machine has no such address: take one that `ip address` shows, or leave the option out", o.IP)
	}
	facts, err := m.look()
	if err != nil {
		return err
	}
	for _, note := range facts.notes {
		o.Warn("%s", note)
	}
	var account *login
	if o.SSHUser != "" {
		if account, err = m.login(ctx, o.SSHUser); err != nil {
			return err
		}
		if !m.has("sshd") {
			o.Warn("--ssh-user: there is no sshd on this machine: until there is one (Debian: openssh-server), the server does not reach the node")
		}
	}
	missing, err := m.missingPackages()
	if err != nil {
		return err
	}
	configDir := defaultNetworkDir
	if !slices.ContainsFunc(missing, func(p string) bool { return p == "containerd" || p == "runc" }) && m.exists(containerdConfig) {
		rt, err := m.configuredContainerd(ctx)
		if err != nil {
			return err
		}
		configDir = rt.configDir
	}
	if err := m.checkNetwork(o, configDir); err != nil {
		return err
	}
	o.Say("asking %s about its cluster", o.Server)
	c, err := discover(ctx, o)
	if err != nil {
		return err
	}
	if err := c.free(ctx, m, o.Name); err != nil {
		return err
	}
	var keys []string
	if account != nil {
		if keys, err = c.offeredKeys(ctx, o); err != nil {
			return err
		}
	}
	stage, err := m.stage()
	if err != nil {
		return err
	}
	defer os.RemoveAll(stage)
	k, err := m.fetchKubelet(ctx, o, c.version, stage)
	if err != nil {
		return err
	}
	r := &record{Server: o.Server, Node: o.Name, OwnServer: o.OwnServer}
	// From here on the machine changes.
	defer func() {
		if err == nil {
			return
		}
		// The caller's context may be the reason: an interruption undoes everything as well.
		undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
		defer cancel()
		if undo := m.remove(undoing, r, o.Say); undo != nil {
			err = fmt.Errorf("%w; not everything could be removed again (%w): run `karve node remove`", err, undo)
		}
	}()
	if err := m.writeRecord(r); err != nil {
		return err
	}
	configured := m.exists(containerdConfig)
	if !configured {
		// The record has that there was none before a package brings one: to the next join, that would be somebody's decision.
		if err := m.keep(r, containerdConfig); err != nil {
			return err
		}
	}
	if err := m.install(ctx, r, missing, o.Say); err != nil {
		return err
	}
	rt, err := m.containerd(ctx, r, facts, o, configured)
	if err != nil {
		return err
	}
	if err := m.checkNetwork(o, rt.configDir); err != nil {
		return err
	}
	if err := m.place(r, o, facts, c, rt, k); err != nil {
		return err
	}
	if account != nil {
		if err := m.authorize(r, account, keys); err != nil {
			return err
		}
		o.Say("the server may log in as %s, and forward connections: %s", o.SSHUser, filepath.Join(account.home, authorizedKeys))
	}
	if err := m.prepareKernel(ctx); err != nil {
		return err
	}
	if err := m.startService(ctx); err != nil {
		return fmt.Errorf("the kubelet could not be started: %w", err)
	}
	o.Say("the kubelet %s runs; waiting until %s is Ready", k.version, o.Name)
	waiting, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	if err := m.becomeReady(waiting, r, o, c, rt); err != nil {
		// A kubelet may not delete its Node.
		left := fmt.Sprintf("The cluster may have the Node %s already: before another attempt, remove it with `kubectl delete node %[1]s`", o.Name)
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted. %s", left)
		}
		return fmt.Errorf("%w. %s. %s", err, m.logHint(context.WithoutCancel(ctx)), left)
	}
	if len(dnsOf(c.kubelet)) == 0 {
		o.Warn("the cluster has no DNS yet, so Pods here have none: run `karve addons apply coredns` on the server, and then `karve node upgrade` here")
	}
	// The kubelet has its own certificate now. The token is not needed again.
	if err := os.Remove(m.path(bootstrapFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
