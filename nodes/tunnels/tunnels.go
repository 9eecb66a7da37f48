// Package tunnels reaches the nodes of a cluster through SSH, where only the SSH port of a node is
// open, or where there is no route to Pods and Services.
//
// [Tunnels] keeps one SSH connection to each node. The API server's connections to nodes, Pods and
// Services become channels of those (direct-tcpip, as `ssh -L` uses them): a node needs its SSH
// server, and nothing else. choose.go chooses the tunnel of a connection, tunnel.go has the life of one tunnel, client.go one SSH connection,
// conn.go a connection through it, hostkeys.go and keys.go both sides' keys, bastion.go --ssh-jump.
package tunnels

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/crypto/ssh"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/karve-k8s/karve/control"
)

// DialFunc is the signature of net.Dialer's DialContext.
type DialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// Node is what the tunnels need to know of a node.
type Node struct {
	Name string
	// Addresses are the node's addresses, without ports, the preferred one first. The API server
	// knows the node by them, too. Those that CheckAddress refuses are not used.
	Addresses []string
	// PodCIDRs are the ranges of the addresses of its Pods; empty if the network plugin assigns
	// addresses in another way.
	PodCIDRs []netip.Prefix
	// KubeletPort is the port of its kubelet.
	KubeletPort int
	// Boot changes when the node has started again, and Ready is what its kubelet reports. A tunnel
	// that waits for its next attempt makes it at once when the node is ready again or has another Boot.
	Boot  string
	Ready bool
}

// Config is the configuration of [Tunnels]. Only User, Signer and HostKeys are required.
type Config struct {
	// User is the user on the nodes.
	User string
	// Port is the port of the nodes' SSH servers; 0 means 22.
	Port int
	// Signer returns the key to offer. It is called for each SSH connection.
	Signer func() (ssh.Signer, error)
	// HostKeys checks the keys of SSH servers, and pins them.
	HostKeys *HostKeys
	// Services are the ranges of the addresses of Services. No node may have such an address.
	Services []netip.Prefix
	// Jump is a bastion through which the nodes are reached; nil means none.
	Jump *Jump
	// Kubelet returns the TLS configuration of the requests to kubelets' /healthz; nil means no
	// client certificate. It is called for each request.
	Kubelet func() *tls.Config
	// Dial makes the TCP connections to SSH servers; nil means a net.Dialer.
	Dial DialFunc
	// Log gets a line when a tunnel comes up or fails for another reason than before; nil means
	// no log.
	Log *logrus.Logger

	// AtOnce is how many SSH connections are authenticating at the same time. What only waits for
	// the network is not among them, so that nodes that are off hold up no other.
	AtOnce int
	// ConnectTimeout limits an attempt to make a TCP connection to an SSH server.
	ConnectTimeout time.Duration
	// DialTimeout limits the authentication after it, and a request to a kubelet.
	DialTimeout time.Duration
	// Linger is how long a closed connection may take to send what was written to it.
	Linger time.Duration
	// KeepAlive is the time between two keepalive requests, and how long the reply may take.
	KeepAlive time.Duration
	// Health is the time between two requests to the kubelet's /healthz. If one has failed, the
	// next follows after a twelfth of it.
	Health time.Duration
	// Retry is how long a tunnel waits between its attempts.
	Retry wait.Backoff
}

// The defaults of Config. DESIGN.md has the reasons.
const (
	defaultPort           = 22
	defaultAtOnce         = 8
	defaultConnectTimeout = 10 * time.Second
	defaultDialTimeout    = 20 * time.Second
	defaultLinger         = 10 * time.Second
	defaultKeepAlive      = 15 * time.Second
	defaultHealth         = time.Minute
)

// defaultRetry waits 1 s, 2 s, 4 s and so on up to 30 s, each with up to half of it added at random.
var defaultRetry = wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.5, Steps: 6, Cap: 30 * time.Second}

// How long a connection waits for a tunnel that is being made.
const (
	patience    = 10 * time.Second
	ownPatience = 2 * time.Second // for that of a Pod's own node, if another one is healthy
)

// dialLimit is how long a connection may take. Upstream's dialers have the same limit.
const dialLimit = 30 * time.Second

// mostTried is through how many nodes a connection to a Pod or Service is tried.
const mostTried = 3

// Tunnels are the tunnels to all nodes of a cluster.
type Tunnels struct {
	config  Config
	dialing slots // for SSH connections that are being made
	jumping slots // for connections through the bastion that are being made

	running context.Context
	stop    context.CancelCauseFunc
	loops   sync.WaitGroup
	copying sync.WaitGroup // for open connections; added to with mu held, before running ends

	mu      sync.Mutex
	nodes   map[string]*tunnel
	changed chan struct{} // closed, and replaced, at each change of a tunnel's state
	listed  bool          // the nodes of the cluster are known
}

var errStopped = errors.New("the server is shutting down")

// New returns tunnels to no nodes. They make no connection before Set is called.
func New(c Config) *Tunnels {
	c.Port, c.AtOnce = cmp.Or(c.Port, defaultPort), cmp.Or(c.AtOnce, defaultAtOnce)
	c.ConnectTimeout, c.DialTimeout = cmp.Or(c.ConnectTimeout, defaultConnectTimeout), cmp.Or(c.DialTimeout, defaultDialTimeout)
	c.Linger, c.KeepAlive, c.Health = cmp.Or(c.Linger, defaultLinger), cmp.Or(c.KeepAlive, defaultKeepAlive), cmp.Or(c.Health, defaultHealth)
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	if c.Log == nil {
		c.Log = logrus.New()
		c.Log.SetOutput(io.Discard)
	}
	if c.Retry.Duration == 0 {
		c.Retry = defaultRetry
	}
	registerMetrics()
	t := &Tunnels{config: c, dialing: make(slots, c.AtOnce), jumping: make(slots, c.AtOnce), nodes: map[string]*tunnel{}, changed: make(chan struct{})}
	t.running, t.stop = context.WithCancelCause(context.Background())
	return t
}

// Set adds a node, or changes what is known of it. If its addresses have changed, its tunnel is
// made anew, and the connections through the old one end. It is made at once if the old one has been
// connected, and otherwise after a pause, so that a node cannot do away with the pauses.
func (t *Tunnels) Set(n Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running.Err() != nil {
		return
	}
	var refused string
	n.Addresses, refused = usable(n.Addresses)
	old := t.nodes[n.Name]
	if refused != "" && (old == nil || old.refused != refused) {
		t.config.Log.Warnf("SSH tunnel to %s: %s", n.Name, refused)
	}
	if old != nil {
		old.refused = refused
		if slices.Equal(old.node.Addresses, n.Addresses) {
			again := old.node.Boot != n.Boot || n.Ready && !old.node.Ready
			old.node = n
			if again {
				old.tryNow()
			}
			return
		}
		old.stop(errors.New("the addresses of the node have changed"))
	}
	one := newTunnel(t, n)
	one.refused = refused
	if old != nil {
		one.inherit(old)
	}
	t.nodes[n.Name] = one
	t.loops.Go(one.run)
}

// Remove ends the tunnel to a node that is no longer in the cluster.
func (t *Tunnels) Remove(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.nodes[name]; old != nil {
		old.stop(errors.New("the node has been removed from the cluster"))
		delete(t.nodes, name)
		t.announce()
	}
}

// Listed says that all nodes that the cluster had at the start have been Set. Until then, connections
// wait.
func (t *Tunnels) Listed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.listed = true
	t.announce()
}

// announce wakes up the connections that wait for a change. The caller holds mu.
func (t *Tunnels) announce() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// Close ends all tunnels and the connections through them. It returns when nothing runs any more.
func (t *Tunnels) Close() {
	t.mu.Lock()
	t.stop(errStopped)
	t.mu.Unlock()
	t.loops.Wait()
	t.copying.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	for name := range t.nodes {
		forgetMetrics(name)
	}
	clear(t.nodes)
}

// Status returns the state of each tunnel, in the order of their nodes' names.
func (t *Tunnels) Status() []control.Tunnel {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := []control.Tunnel{}
	for _, name := range slices.Sorted(maps.Keys(t.nodes)) {
		all = append(all, t.nodes[name].status())
	}
	return all
}
