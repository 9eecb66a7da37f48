package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	nodeutil "k8s.io/component-helpers/node/util"

	"github.com/karve-k8s/karve/bootstrap/kubeadm"
	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/internal/ensure"
	"github.com/karve-k8s/karve/nodes/tunnels"
	"github.com/karve-k8s/karve/server/sharedinformers"
	"github.com/karve-k8s/karve/simulate"
)

// sshPlan is what --ssh-user and the options beside it come to.
type sshPlan struct {
	user       string
	port       int
	jump       *tunnels.Jump // nil: none
	keyFile    string
	generate   bool // the key, if there is none yet
	knownHosts string
	services   []netip.Prefix // no node may claim an address in these
}

// parseSSH reads the options of the SSH tunnels.
func (d *draft) parseSSH() {
	if d.SSHUser == "" {
		for _, o := range [][2]string{{"ssh-keyfile", d.SSHKeyFile}, {"ssh-jump", d.SSHJump}, {"ssh-known-hosts", d.SSHKnownHosts}} {
			if o[1] != "" {
				d.addf("--%s %s: has no effect without --ssh-user, the user on the nodes", o[0], o[1])
			}
		}
		return
	}
	p := &sshPlan{user: d.SSHUser, port: d.SSHPort, keyFile: d.SSHKeyFile, knownHosts: d.SSHKnownHosts}
	for _, s := range d.services {
		if prefix, err := netip.ParsePrefix(s.String()); err == nil {
			p.services = append(p.services, prefix)
		}
	}
	if tunnels.CheckUser(d.SSHUser) != nil {
		d.addf("--ssh-user %q: not the name of a user", d.SSHUser)
	}
	if d.SSHPort < 0 || d.SSHPort > 65535 {
		d.addf("--ssh-port %d: not a port: 1 to 65535", d.SSHPort)
	}
	if d.SSHJump != "" {
		var err error
		if p.jump, err = tunnels.ParseJump(d.SSHJump); err != nil {
			d.addf("--ssh-jump %w", err)
		}
	}
	switch {
	case d.SSHKeyFile != "":
		if _, err := tunnels.ReadKey(d.SSHKeyFile); err != nil {
			if errors.Is(err, os.ErrNotExist) {
				err = fmt.Errorf("%w: make a key with ssh-keygen -t ed25519 -N '' -f %s, or leave the option out, and the server makes one in its data directory", err, d.SSHKeyFile)
			}
			d.addf("--ssh-keyfile: %w", err)
		}
	case d.DataDir != "":
		p.keyFile, p.generate = tunnels.KeyPath(d.DataDir), true
		if _, err := tunnels.ReadKey(p.keyFile); err != nil && !errors.Is(err, os.ErrNotExist) {
			d.addf("--ssh-user: %w", err)
		}
	}
	if p.knownHosts == "" {
		p.knownHosts = tunnels.KnownHostsPath(d.DataDir)
	} else if info, err := os.Stat(filepath.Dir(p.knownHosts)); err != nil || !info.IsDir() {
		d.addf("--ssh-known-hosts %s: its directory does not exist", p.knownHosts)
	}
	if err := (&tunnels.HostKeys{Path: p.knownHosts}).Check(); err != nil {
		d.addf("%w", err)
	}
	d.ssh = p
}

// sshTunnels are two parts of the server. The tunnels start before the API server, which dials
// through them, and end after it. The nodes are followed once the API server is ready.
type sshTunnels struct {
	*sshPlan
	dataDir      string
	log          *logrus.Logger
	certificates func() *certs.Store
	connect      func() sshConnection

	tunnels atomic.Pointer[tunnels.Tunnels] // set when the first part is ready; the control socket asks earlier
}

// sshConnection is what the second part gets from others.
type sshConnection struct {
	client       *rest.Config // an administrator's
	informers    sharedinformers.Lasting
	addressTypes []string // --kubelet-preferred-address-types
}

// Run keeps the tunnels until ctx ends. It does not wait for any: a server whose nodes are off is
// ready, because it is what they come back to.
func (s *sshTunnels) Run(ctx context.Context, ready func()) error {
	if err := os.MkdirAll(filepath.Join(s.dataDir, tunnels.Directory), 0o700); err != nil {
		return err
	}
	if s.generate {
		if err := tunnels.GenerateKey(s.keyFile, keyComment()); err != nil {
			return err
		}
	}
	store := s.certificates()
	all := tunnels.New(tunnels.Config{
		User: s.user, Port: s.port, Jump: s.jump, Services: s.services, Log: s.log,
		Signer:   tunnels.KeyFile(s.keyFile),
		HostKeys: &tunnels.HostKeys{Path: s.knownHosts},
		Kubelet: func() *tls.Config {
			pair, err := tls.LoadX509KeyPair(store.CertFile(certs.KubeletClient), store.KeyFile(certs.KubeletClient))
			if err != nil {
				return &tls.Config{}
			}
			return &tls.Config{Certificates: []tls.Certificate{pair}}
		},
	})
	s.tunnels.Store(all)
	ready()
	<-ctx.Done()
	all.Close()
	return nil
}

// status is the answer of the control socket.
func (s *sshTunnels) status() []control.Tunnel {
	if s == nil || s.tunnels.Load() == nil {
		return []control.Tunnel{}
	}
	return s.tunnels.Load().Status()
}

// follow makes a tunnel to each node of the cluster until ctx ends, and offers the key to nodes.
func (s *sshTunnels) follow(ctx context.Context, ready func()) error {
	from, all := s.connect(), s.tunnels.Load()
	informer := from.informers.Core().V1().Nodes().Informer()
	set := func(object any) {
		if node, ok := object.(*corev1.Node); ok && !simulate.IsNode(node) {
			all.Set(tunnelNode(node, from.addressTypes))
		}
	}
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, object any) { set(object) },
		DeleteFunc: func(object any) {
			if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			if node, ok := object.(*corev1.Node); ok {
				all.Remove(node.Name)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("follow nodes: %w", err)
	}
	defer informer.RemoveEventHandler(handler)
	from.informers.StartWithContext(ctx) // it runs already, unless the user configured authorization
	ready()
	if !cache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		return nil
	}
	all.Listed()
	s.offerKey(ctx, from.client)
	<-ctx.Done()
	return nil
}

// tunnelNode is what the tunnels need to know of a node. The addresses are in the order in which the
// API server prefers their types.
func tunnelNode(node *corev1.Node, addressTypes []string) tunnels.Node {
	n := tunnels.Node{Name: node.Name, KubeletPort: int(node.Status.DaemonEndpoints.KubeletEndpoint.Port), Boot: node.Status.NodeInfo.BootID}
	for _, kind := range addressTypes {
		for _, a := range node.Status.Addresses {
			if string(a.Type) == kind && !slices.Contains(n.Addresses, a.Address) {
				n.Addresses = append(n.Addresses, a.Address)
			}
		}
	}
	for _, cidr := range node.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(cidr); err == nil {
			n.PodCIDRs = append(n.PodCIDRs, p)
		}
	}
	_, ready := nodeutil.GetNodeCondition(&node.Status, corev1.NodeReady)
	n.Ready = ready != nil && ready.Status == corev1.ConditionTrue
	return n
}

// keyComment is the end of the line for authorized_keys, which tells people whose key it is.
func keyComment() string {
	host, err := os.Hostname()
	if err != nil {
		host = "server"
	}
	return "karve@" + host
}

// sshRole lets nodes read the ConfigMap that offers the key.
const sshRole = "karve:ssh"

// offerKey puts the public key into a ConfigMap that nodes may read, also while they join. It
// tries until it succeeds.
func (s *sshTunnels) offerKey(ctx context.Context, config *rest.Config) {
	signer, err := tunnels.ReadKey(s.keyFile)
	var client *kubernetes.Clientset
	if err == nil {
		client, err = kubernetes.NewForConfig(config)
	}
	if err != nil {
		s.log.Errorf("offer the SSH key to nodes: %v", err)
		return
	}
	line := tunnels.AuthorizedKey(signer, keyComment())
	told := false
	_ = wait.PollUntilContextCancel(ctx, 10*time.Second, true, func(ctx context.Context) (bool, error) {
		err := s.publish(ctx, client, line)
		if err != nil && ctx.Err() == nil && !told {
			s.log.Warnf("offer the SSH key to nodes in the ConfigMap kube-public/%s: %v", tunnels.OfferName, err)
			told = true
		}
		return err == nil, nil
	})
}

// publish creates or changes the objects. Several servers of one cluster have a line each.
func (s *sshTunnels) publish(ctx context.Context, client kubernetes.Interface, line string) error {
	ns := metav1.NamespacePublic
	for _, o := range []runtime.Object{
		kubeadm.Reader(ns, sshRole, tunnels.OfferName),
		kubeadm.Readers(ns, sshRole, kubeadm.Group("system:nodes"), kubeadm.Group("system:bootstrappers")),
	} {
		if _, err := ensure.Exists(ctx, client, o); err != nil {
			return err
		}
	}
	offer := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: tunnels.OfferName, Namespace: ns},
		Data:       map[string]string{tunnels.OfferUser: s.user, tunnels.OfferLines: line + "\n"},
	}
	_, err := ensure.Follows(ctx, client, offer, metav1.GetOptions{}, func(have *corev1.ConfigMap) error {
		lines := have.Data[tunnels.OfferLines]
		offered, others := tunnels.Authorizes(lines, line)
		if others > 0 {
			s.log.Infof("the ConfigMap kube-public/%s offers %d other keys to nodes: remove the lines of keys that are no longer in use, there and on the nodes", tunnels.OfferName, others)
		}
		have.Data[tunnels.OfferUser] = s.user
		if offered {
			return nil
		}
		if lines != "" && !strings.HasSuffix(lines, "\n") {
			lines += "\n"
		}
		have.Data[tunnels.OfferLines] = lines + line + "\n"
		return nil
	})
	return err
}
