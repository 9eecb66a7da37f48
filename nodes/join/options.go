package join

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/cert"
	tokenutil "k8s.io/cluster-bootstrap/token/util"
	kubeletapis "k8s.io/kubelet/pkg/apis"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pubkeypin"
	taintutil "k8s.io/kubernetes/pkg/util/taints"

	"github.com/karve-k8s/karve/nodes/join/ask"
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
	// PodCIDR are the addresses of this node's Pods; empty: those that the cluster gives the node.
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
	// Say takes a line of progress.
	Say func(format string, args ...any)
	// Warn takes a line about something that may be wrong.
	Warn func(format string, args ...any)
}

// Defaults of Options.
const (
	DefaultKubeletURL = "https://dl.k8s.io/release"
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
		o.Patience = ask.DefaultPatience
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
	// The kubelet checks labels and taints in the same way, and would not start.
	set, err := labels.ConvertSelectorToLabelsMap(o.Labels)
	if err != nil {
		add("--node-labels %q: %w: want key=value, separated by commas", o.Labels, err)
	}
	for key := range set {
		if prefix, _, found := strings.Cut(key, "/"); found && ownPrefix.MatchString(prefix) && !kubeletapis.IsKubeletLabel(key) {
			add("--node-labels %q: a kubelet may not set %s: leave it out, and set it with `karve kubectl label node %s` on the server", o.Labels, key, o.Name)
		}
	}
	o.Labels = set.String()
	if _, removed, err := taintutil.ParseTaints(strings.FieldsFunc(o.Taints, func(r rune) bool { return r == ',' })); err != nil || len(removed) > 0 {
		add("--node-taints %q: want key=value:Effect, or key:Effect, with the effect NoSchedule, PreferNoSchedule or NoExecute (%v)", o.Taints, err)
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

// ownPrefix matches prefixes of labels that belong to Kubernetes.
var ownPrefix = regexp.MustCompile(`(^|\.)(kubernetes|k8s)\.io$`)

// questions are those to the cluster.
func (o *Options) questions() ask.Questions {
	return ask.Questions{Server: o.Server, Token: o.Token, CAHashes: o.CAHashes, Patience: o.Patience, Say: o.Say}
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
