package server

import (
	"cmp"
	"context"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/emicklei/go-restful/v3"
	"github.com/sirupsen/logrus"

	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/server/apiserver/replacements"
	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/insecure"
	"github.com/karve-k8s/karve/server/ports"
	"github.com/karve-k8s/karve/server/startup"
)

// Config is everything that a user decides about a control plane. The zero value with a
// DataDir is a working one: each field says what it means when it is empty.
type Config struct {
	// DataDir is the directory of the state, the certificates and the admin's kubeconfig.
	// A start creates it (0700) if it is missing. Required.
	DataDir string

	// BindAddress is where the secure listener listens; empty is every address.
	BindAddress string
	// SecurePort is its port; 0 lets the kernel choose.
	SecurePort int
	// AdvertiseAddress is how the cluster reaches this server; empty chooses
	// an address of the interface with the default route.
	AdvertiseAddress string

	// InsecureBindAddress is where the insecure listener listens; empty is
	// 127.0.0.1.
	InsecureBindAddress string
	// InsecurePort is its port; 0 lets the kernel choose.
	InsecurePort int
	// DisableInsecure leaves the insecure listener out. Where OwnersKnown is false,
	// a configuration needs this or InsecureAnyUser.
	DisableInsecure bool
	// InsecureAllowRemote permits an InsecureBindAddress other than loopback:
	// every client that reaches it is an administrator.
	InsecureAllowRemote bool
	// InsecureAnyUser accepts every local user at the insecure listener, not only
	// root and the server's own, and containers that share this machine's network.
	InsecureAnyUser bool
	// DisableHTTP2 leaves HTTP/1.1 only, on both listeners.
	DisableHTTP2 bool
	// CompressLoopback compresses large responses for clients on this machine too,
	// when they ask for it: for tunnels and proxies that end here.
	CompressLoopback bool

	// TLSSANs are names and addresses added to the serving certificate.
	TLSSANs []string
	// TLSCertFile and TLSKeyFile replace the serving certificate; both or none.
	TLSCertFile, TLSKeyFile string
	// WriteKubeconfig is a second place for the admin's kubeconfig.
	WriteKubeconfig string
	// WriteKubeconfigMode is that file's mode; 0 is 0600.
	WriteKubeconfigMode os.FileMode

	// ServiceClusterIPRange is a CIDR, or an IPv4 and an IPv6 one with a comma
	// between; empty is DefaultServiceClusterIPRange.
	ServiceClusterIPRange string
	// ClusterCIDR is the range of Pod addresses, like ServiceClusterIPRange.
	// Empty leaves the assignment to the network plugin.
	ClusterCIDR string
	// ClusterDomain is the cluster's DNS domain; empty is cluster.local.
	ClusterDomain string

	// DatastoreEndpoint is empty for the built-in datastore in DataDir;
	// sqlite://DIR?durability=full|relaxed|memory&cache=BYTES for it somewhere
	// else or in another mode; memory:// for one that keeps nothing; or the
	// URLs of a real etcd, http(s)://…, with commas between.
	DatastoreEndpoint string

	// ForkFrom is a file of `karve snapshot`, or the data directory of a cluster,
	// which may be running: this one begins with its objects, certificates and keys.
	// A DataDir that is a fork of it already goes on as it is. Empty is none.
	ForkFrom string

	// Durability is full (the default) or relaxed, of the built-in datastore:
	// what durability= of DatastoreEndpoint is.
	Durability string
	// DatastoreCAFile, DatastoreCertFile and DatastoreKeyFile are for an etcd
	// that speaks TLS.
	DatastoreCAFile, DatastoreCertFile, DatastoreKeyFile string
	// EtcdListen is where the datastore is served as the etcd API beyond its
	// socket: https://ADDRESS:PORT, for clients with a certificate of the etcd
	// authority in DataDir/certs, or http:// with a loopback address, for root and
	// the server's own user. Empty is nowhere.
	EtcdListen string

	// NoControllers leaves all controllers out, DisableControllers some by
	// name (upstream's names or aliases), DisableScheduler the scheduler.
	NoControllers      bool
	DisableControllers []string
	DisableScheduler   bool

	// SimulateNodes is how many nodes are simulated in this process: see package
	// simulate.
	SimulateNodes int

	// APIServerArgs, ControllerManagerArgs and SchedulerArgs are upstream's own
	// options, name=value; they win over Karve's defaults.
	APIServerArgs, ControllerManagerArgs, SchedulerArgs []string

	// StartTimeout bounds the start of each part; 0 is five minutes, enough
	// for the slowest board.
	StartTimeout time.Duration
	// StopTimeout bounds the termination of the API server, its
	// --shutdown-delay-duration not counted; 0 is a minute, as long as a request
	// may take (--request-timeout), which systemd allows too.
	StopTimeout time.Duration

	// MemoryLimit is a soft limit, in bytes, to what the Go runtime of this process
	// uses, and with one the garbage collector is tuned for a server: see package
	// memory, whose Limit reads and chooses one. 0 leaves the collector alone.
	MemoryLimit int64

	// SettleAfter is how long after it is ready the server settles: it gives back the
	// memory that its start took, and makes the index of OpenAPI documents, for which
	// the first client would wait. 0 is immediately, which suits a server that stays. With
	// any other value the garbage collector does less until then: a cluster for a short
	// command is ready sooner, and takes more memory.
	SettleAfter time.Duration

	// StartupTrace is a file for a trace of the start, in the format of Chrome's
	// tracing and Perfetto; empty is none. It is written when everything is ready or the
	// start has failed.
	StartupTrace string

	// Upstream names the deviations that are off: there upstream's code runs in place of
	// Karve's own. deviations.Table has the names; "all" is every one. It is for tests, and
	// for finding out whether a problem is Karve's or upstream's. A few of them are of the
	// whole process (see deviations.Process).
	Upstream []string

	// Log is the server's log; nil is standard error, from info up.
	Log *logrus.Logger `json:"-"`
	// Ready is called once, when everything is ready; nil is no call.
	Ready func(Info) `json:"-"`
	// Progress is called every few seconds while a start goes on; nil is no call.
	Progress func(Progress) `json:"-"`

	routers       func(ours, upstreams restful.RouteSelector, services []*restful.WebService)
	unknownOwners bool        // as if OwnersKnown were false: for tests
	clockDoubted  func() bool // in place of certificates.ClockDoubt: for tests
}

// OwnersKnown reports whether this system tells which user opened a connection. Where it
// does not, the insecure port would make every local user, every program and, with Docker
// Desktop, every container an administrator.
const OwnersKnown = insecure.OwnersKnown

// The defaults of fields that have one.
const (
	DefaultSecurePort            = 6443
	DefaultInsecurePort          = 8080
	DefaultServiceClusterIPRange = "10.96.0.0/12"
	DefaultClusterDomain         = "cluster.local"
	defaultStartTimeout          = 5 * time.Minute
	defaultStopTimeout           = time.Minute
)

// Info describes a control plane that is ready.
type Info struct {
	// URL is the secure listener, at an address of this machine.
	URL string
	// InsecureURL is the insecure listener; empty if there is none.
	InsecureURL string
	// EtcdURL is the etcd API beyond its socket; empty if it is not served there.
	EtcdURL string
	// Kubeconfig is the path of the admin's kubeconfig.
	Kubeconfig string
	// Took is the time from Run's start to now.
	Took time.Duration
	// Slowest are the parts that took longest to start, the slowest first.
	Slowest []startup.Span
}

// Progress is what a start is doing, for users who wait for it.
type Progress struct {
	// Part is the part that has been starting for the longest time.
	Part string
	// For is how long it has been starting, and Doing what it last reported, such as
	// "reading the database: 40%"; empty is nothing.
	For   time.Duration
	Doing string
}

// completed is a Config in which every field has a value. It is made by complete.
type completed struct{ Config }

// complete fills in the defaults.
func (c Config) complete() completed {
	c.InsecureBindAddress = cmp.Or(c.InsecureBindAddress, "127.0.0.1")
	c.ServiceClusterIPRange = cmp.Or(c.ServiceClusterIPRange, DefaultServiceClusterIPRange)
	c.ClusterDomain = cmp.Or(c.ClusterDomain, DefaultClusterDomain)
	c.WriteKubeconfigMode = cmp.Or(c.WriteKubeconfigMode, 0o600)
	c.StartTimeout = cmp.Or(c.StartTimeout, defaultStartTimeout)
	c.StopTimeout = cmp.Or(c.StopTimeout, defaultStopTimeout)
	if c.Log == nil {
		c.Log, _ = logbridge.New(os.Stderr, "text", "info") // these are valid
	}
	if abs, err := filepath.Abs(c.DataDir); err == nil && c.DataDir != "" {
		c.DataDir = abs
	}
	return completed{c}
}

// ShortenGoodbyes makes a stop of the one server that this process has shorter, if
// clients on other machines cannot reach it.
func (c Config) ShortenGoodbyes() {
	if switches, _ := deviations.Parse(c.Upstream); !c.Reachable() && switches.On(deviations.GoAway) {
		replacements.ShortenGoodbyes()
	}
}

// Reachable reports whether other machines can reach one of the listeners.
func (c Config) Reachable() bool {
	full := c.complete()
	return !net.ParseIP(full.BindAddress).IsLoopback() || !full.DisableInsecure && !net.ParseIP(full.InsecureBindAddress).IsLoopback()
}

// Validate reports every problem of the configuration that can be seen without starting
// anything, joined, each naming its option. It changes nothing: no file, and no setting of
// the process but, for as long as it takes, the feature gates that the configuration asks for,
// which upstream's own validation reads.
func (c Config) Validate(ctx context.Context) error {
	_, err := c.complete().parse().validate(ctx)
	return err
}

// Ports are those that the configuration asks for. A port that [Config.Validate] refuses is
// left out: the reason there is the better one.
func (c Config) Ports() []ports.Port { return c.complete().parse().ports }
