package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/emicklei/go-restful/v3"
	"github.com/sirupsen/logrus"
	netutils "k8s.io/utils/net"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/internal/memory"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/apiserver/replacements"
	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/insecure"
	"github.com/karve-k8s/karve/server/scheduler"
	"github.com/karve-k8s/karve/server/startup"
)

// Config is everything about a control plane that a user may decide. The zero
// value, with a DataDir, is a working one: each field says what it means when
// it is empty.
type Config struct {
	// DataDir keeps the state, the certificates and the admin's kubeconfig.
	// It is made (0700) if it is missing. Required.
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
	// whoever reaches it is an administrator.
	InsecureAllowRemote bool
	// InsecureAnyUser accepts every local user at the insecure listener, not only
	// root and our own, and containers that share this machine's network.
	InsecureAnyUser bool
	// DisableHTTP2 leaves HTTP/1.1 only, on both listeners.
	DisableHTTP2 bool
	// CompressLoopback compresses large answers for clients on this machine too,
	// when they ask for it: for tunnels and relays that end here.
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
	// socket: https://ADDRESS:PORT, for who has a certificate of the etcd
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

	// SettleAfter is how long after it is ready the server comes to rest: then it gives
	// back the memory that its start took, and makes what is ready for the first who
	// asks (the index of OpenAPI). 0 is at once, which suits a server that stays. With
	// any other value the garbage collector does less until then: a cluster for a short
	// command is up sooner, and takes more memory.
	SettleAfter time.Duration

	// StartupTrace is a file for a trace of the start, in the format of Chrome's
	// tracing and Perfetto; empty is none. It is written when all is ready or the
	// start has failed.
	StartupTrace string

	// Upstream names the deviations that are off: there upstream's code runs in place of
	// Karve's own. deviations.Table has the names; "all" is every one. It is for tests, and
	// for finding out whether a problem is Karve's or upstream's. A few of them are of the
	// whole process (see deviations.Process).
	Upstream []string

	// Log gets everything that is logged; nil is standard error, from info up.
	Log *logrus.Logger `json:"-"`
	// Ready is called once, when everything is ready; nil is no call.
	Ready func(Info) `json:"-"`

	routers       func(ours, upstreams restful.RouteSelector, services []*restful.WebService)
	unknownOwners bool        // as if OwnersKnown were false: for tests
	clockDoubted  func() bool // in place of a clockDoubt: for tests
}

// OwnersKnown says that this system tells which user opened a connection. Without
// that knowledge the insecure port would make every local user, every program and,
// with Docker Desktop, every container an administrator.
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

// Info is what a running control plane tells about itself.
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

func (c Config) path(name ...string) string {
	return filepath.Join(append([]string{c.DataDir}, name...)...)
}

// withDefaults fills in what is empty.
func (c Config) withDefaults() Config {
	set := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	set(&c.InsecureBindAddress, "127.0.0.1")
	set(&c.ServiceClusterIPRange, DefaultServiceClusterIPRange)
	set(&c.ClusterDomain, DefaultClusterDomain)
	if c.WriteKubeconfigMode == 0 {
		c.WriteKubeconfigMode = 0o600
	}
	if c.StartTimeout == 0 {
		c.StartTimeout = defaultStartTimeout
	}
	if c.StopTimeout == 0 {
		c.StopTimeout = defaultStopTimeout
	}
	if c.Log == nil {
		c.Log, _ = logbridge.New(os.Stderr, "text", "info") // these are valid
	}
	if abs, err := filepath.Abs(c.DataDir); err == nil && c.DataDir != "" {
		c.DataDir = abs
	}
	return c
}

// ShortenGoodbyes makes a stop of the one server that this process has shorter, if
// nobody on another machine can reach it.
func (c Config) ShortenGoodbyes() {
	if !c.Reachable() && c.switches().On(deviations.GoAway) {
		replacements.ShortenGoodbyes()
	}
}

// Reachable tells whether other machines can reach one of the listeners.
func (c Config) Reachable() bool {
	c = c.withDefaults()
	return !net.ParseIP(c.BindAddress).IsLoopback() || !c.DisableInsecure && !net.ParseIP(c.InsecureBindAddress).IsLoopback()
}

// Validate reports every problem of the configuration that can be seen without
// starting anything, joined, each naming its option.
func (c Config) Validate(ctx context.Context) error {
	c = c.withDefaults()
	var errs problems
	errs.add(checkDataDir(c.DataDir))
	errs.add(checkPort("secure-port", c.SecurePort))
	errs.add(checkAddress("bind-address", c.BindAddress))
	errs.add(checkAddress("advertise-address", c.AdvertiseAddress))
	if !c.DisableInsecure {
		errs.add(checkPort("insecure-port", c.InsecurePort))
		errs.add(insecure.Check(c.InsecureBindAddress, c.InsecureAllowRemote))
		errs.add(checkOwners(c))
		errs.add(checkPortsDiffer(c))
	}
	for _, san := range c.TLSSANs {
		if _, _, err := certs.ParseSAN(san); err != nil {
			errs.add(fmt.Errorf("--tls-san: %w", err))
		}
	}
	if (c.TLSCertFile == "") != (c.TLSKeyFile == "") {
		errs.addf("--tls-cert-file and --tls-private-key-file: one is given without the other")
	}
	errs.add(checkKeyPair(c.TLSCertFile, c.TLSKeyFile))
	errs.add(apiserver.CheckFiles(c.APIServerArgs))
	errs.add(checkFile("datastore-cafile", c.DatastoreCAFile))
	errs.add(checkFile("datastore-certfile", c.DatastoreCertFile))
	errs.add(checkFile("datastore-keyfile", c.DatastoreKeyFile))
	_, err := c.location()
	errs.add(err)
	if err == nil && c.DataDir != "" {
		_, err := c.fork()
		errs.add(err)
	}
	errs.add(checkEtcdListen(c))
	if _, err := deviations.Parse(c.Upstream); err != nil {
		errs.add(fmt.Errorf("--upstream: %w", err))
	}
	errs.add(checkStartupTrace(c.StartupTrace))
	if c.SettleAfter < 0 {
		errs.addf("--settle-after %v: want 0 or more", c.SettleAfter)
	}
	if c.MemoryLimit < 0 || c.MemoryLimit > 0 && c.MemoryLimit < memory.Least {
		errs.addf("--memory-limit %d: want %dMi at least", c.MemoryLimit, memory.Least>>20)
	}

	services, err := checkCIDRs("service-cluster-ip-range", c.ServiceClusterIPRange)
	errs.add(err)
	pods, err := checkCIDRs("cluster-cidr", c.ClusterCIDR)
	errs.add(err)
	for _, s := range services {
		for _, p := range pods {
			if s.Contains(p.IP) || p.Contains(s.IP) {
				errs.addf("--cluster-cidr %s overlaps --service-cluster-ip-range %s", p, s)
			}
		}
	}

	errs.add(checkSimulation(c, services))

	// Upstream's checks need ranges that parse; its own words about ours would
	// only repeat what was said above.
	upstream := c
	if services == nil {
		upstream.ServiceClusterIPRange = DefaultServiceClusterIPRange
	}
	errs.add(validateUpstream(ctx, upstream))
	return errors.Join(errs...)
}

// validateUpstream asks the three components what they would refuse.
func validateUpstream(ctx context.Context, c Config) error {
	var errs problems
	// A key made for nothing else: upstream parses it while it completes.
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	scratch := c.DataDir // a read-only root may have no /tmp
	if checkDataDir(c.DataDir) != nil {
		scratch = ""
	}
	api := c.apiserverConfig(advertiseAddress(c))
	if gates, err := apiserver.GatesOf(api); err == nil { // else the next says it
		if release, err := gates.Hold(); err == nil {
			defer release()
		}
	}
	err = apiserver.Validate(ctx, api, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), scratch)
	errs.add(err)
	// All three look at the process' feature gates, which are held; one complaint is enough.
	gatesAreFine := !errors.Is(err, apiserver.ErrFeatureGates)
	if !c.NoControllers {
		o, err := c.controllerOptions()
		if err == nil && gatesAreFine {
			err = o.Validate()
		}
		errs.add(err)
	}
	if !c.DisableScheduler {
		o, err := scheduler.Parse(c.SchedulerArgs)
		if err == nil && gatesAreFine {
			err = o.Validate()
		}
		errs.add(err)
	}
	return errors.Join(errs...)
}

// problems is a list of what is wrong; adding nil adds nothing.
type problems []error

func (p *problems) add(err error) {
	if err != nil {
		*p = append(*p, err)
	}
}

func (p *problems) addf(format string, args ...any) { p.add(fmt.Errorf(format, args...)) }

func checkStartupTrace(file string) error {
	if file == "" {
		return nil
	}
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		return fmt.Errorf("--startup-trace %s: is a directory", file)
	}
	if _, err := os.Stat(filepath.Dir(file)); err != nil {
		return fmt.Errorf("--startup-trace %s: %w", file, err)
	}
	return nil
}

func checkPort(flag string, port int) error {
	if port < 0 || port > 65535 {
		return fmt.Errorf("--%s %d: not a port: 0 to 65535", flag, port)
	}
	return nil
}

func checkAddress(flag, address string) error {
	if address != "" && net.ParseIP(address) == nil {
		return fmt.Errorf("--%s %q: not an IP address", flag, address)
	}
	return nil
}

// checkOwners says what is wrong with an insecure port on a system that does not tell
// who connects to it.
func checkOwners(c Config) error {
	if err := insecure.CheckOwners(c.ownersKnown(), c.InsecureAnyUser); err != nil {
		return fmt.Errorf("--insecure-port %d: %w", c.InsecurePort, err)
	}
	return nil
}

func (c Config) ownersKnown() bool { return OwnersKnown && !c.unknownOwners }

func checkPortsDiffer(c Config) error {
	if c.SecurePort != 0 && c.SecurePort == c.InsecurePort {
		return fmt.Errorf("--insecure-port %d: the same as --secure-port", c.InsecurePort)
	}
	return nil
}

func checkFile(flag, path string) error {
	if path == "" {
		return nil
	}
	return apiserver.CheckFile(flag, path)
}

func checkKeyPair(cert, key string) error {
	if cert == "" || key == "" { // one without the other is another problem
		return nil
	}
	if err := errors.Join(checkFile("tls-cert-file", cert), checkFile("tls-private-key-file", key)); err != nil {
		return err
	}
	if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
		return fmt.Errorf("--tls-cert-file %s, --tls-private-key-file %s: %w", cert, key, err)
	}
	return nil
}

// checkDataDir tries to make and to write the directory: permissions, quotas
// and read-only mounts are only known by trying.
func checkDataDir(dir string) error {
	if dir == "" {
		return errors.New("--data-dir: needs a directory")
	}
	if err := datastore.MakeDir(dir); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	f, err := os.CreateTemp(dir, ".writable-")
	if datastore.IsFull(err) {
		return nil // a start makes room, by what the datastore keeps for that
	} else if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	return nil
}

// checkCIDRs parses one CIDR, or two of different families.
func checkCIDRs(flag, list string) ([]*net.IPNet, error) {
	if list == "" {
		return nil, nil
	}
	var cidrs []*net.IPNet
	for part := range strings.SplitSeq(list, ",") {
		_, cidr, err := net.ParseCIDR(part)
		if err != nil {
			return nil, fmt.Errorf("--%s %s: %q is not a CIDR such as 10.96.0.0/12 or fd00:10:96::/112", flag, list, part)
		}
		cidrs = append(cidrs, cidr)
	}
	if len(cidrs) > 2 {
		return nil, fmt.Errorf("--%s %s: want one range, or one for IPv4 and one for IPv6", flag, list)
	}
	if len(cidrs) == 2 && netutils.IsIPv4CIDR(cidrs[0]) == netutils.IsIPv4CIDR(cidrs[1]) {
		return nil, fmt.Errorf("--%s %s: both ranges are of one family, want one for IPv4 and one for IPv6", flag, list)
	}
	return cidrs, nil
}
