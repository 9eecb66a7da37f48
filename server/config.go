package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/emicklei/go-restful/v3"
	"github.com/sirupsen/logrus"

	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/server/insecure"
	"github.com/karve-k8s/karve/server/lifecycle"
	"github.com/karve-k8s/karve/server/ports"
	"github.com/karve-k8s/karve/server/snapshots"
)

// Config is the configuration of a control plane. Only DataDir is required: every other field may
// be zero, and its comment says what that means.
type Config struct {
	// DataDir is the directory of the state, the certificates and the admin's kubeconfig. The
	// server creates it with mode 0700 if it does not exist. Required.
	DataDir string

	// ConfigFile is the absolute path of the file of these options; empty if there is none. The server does not
	// read it: backups contain it.
	ConfigFile string

	// ManifestsDir is the directory whose files the server applies to the cluster; empty means manifests in DataDir. It may be missing.
	ManifestsDir string
	// BackupSchedule says when the server backs itself up, in the syntax of cron; empty means never. Without a
	// built-in datastore on the disk, it has no effect.
	BackupSchedule string
	// BackupRetention is how many scheduled backups stay; 0 means 7.
	BackupRetention int
	// BackupDir is an existing directory for scheduled backups; empty means backups in DataDir, which the server
	// creates.
	BackupDir string

	// AuditPreset is one of metadata, writes and full: an audit log in DataDir with a policy of Karve's. Empty means the policy
	// that APIServerArgs name, or none.
	AuditPreset string

	// BindAddress is the address of the secure listener; empty means every address.
	BindAddress string
	// SecurePort is its port; with 0 the kernel chooses one.
	SecurePort int
	// AdvertiseAddress is the address by which the cluster reaches this server. If it is empty,
	// Karve chooses an address of the interface with the default route, and another when the machine has
	// lost that one. With a loopback address, the kubernetes Service has no endpoints.
	AdvertiseAddress string
	// AdvertiseURL is the URL at which users reach the cluster, such as that of a load balancer in front
	// of several servers: https://HOST[:PORT]. The serving certificate contains the host, and the
	// kubeconfigs for users have the URL. Empty means that users reach this server itself.
	AdvertiseURL string
	// ControlPlaneEndpoint is the host, or host:port, at which nodes reach the API server, such as
	// a load balancer or a DNS name. Without a port, it is that of the secure listener. Empty
	// means the host and port of AdvertiseURL, unless nodes cannot reach these because the host is
	// loopback, and otherwise AdvertiseAddress.
	ControlPlaneEndpoint string

	// InsecureBindAddress is the address of the insecure listener; empty means 127.0.0.1.
	InsecureBindAddress string
	// InsecurePort is its port; with 0 the kernel chooses one.
	InsecurePort int
	// DisableInsecure switches the insecure listener off. Where OwnersKnown is false, a
	// configuration must set this or InsecureAnyUser.
	DisableInsecure bool
	// InsecureAllowRemote permits an InsecureBindAddress that is not a loopback address. Every
	// client that reaches it is then an administrator.
	InsecureAllowRemote bool
	// InsecureAnyUser makes the insecure listener accept every local user, and containers that
	// share this machine's network. Without it, only root and the server's own user may use it.
	InsecureAnyUser bool
	// SocketGroups, each UNIXGROUP=GROUP, lets members of a Unix group use the API by the socket in DataDir, as
	// members of a group of Kubernetes. Root and the server's own user are always administrators there.
	SocketGroups []string
	// DisableHTTP2 restricts all listeners to HTTP/1.1.
	DisableHTTP2 bool

	// TLSSANs are names and addresses added to the serving certificate.
	TLSSANs []string
	// TLSCertFile and TLSKeyFile replace the serving certificate. Set both or neither.
	TLSCertFile, TLSKeyFile string
	// WriteKubeconfig is the path of a copy of the admin's kubeconfig; empty means no copy.
	WriteKubeconfig string
	// WriteKubeconfigMode is the mode of that copy; 0 means 0600.
	WriteKubeconfigMode os.FileMode

	// ServiceClusterIPRange is a CIDR, or an IPv4 and an IPv6 CIDR separated by a comma. Empty
	// means DefaultServiceClusterIPRange.
	ServiceClusterIPRange string
	// ClusterCIDR is the range of Pod addresses, in the same form. Each node gets a part of it. Empty
	// means DefaultClusterCIDR or DefaultClusterCIDRv6, as ServiceClusterIPRange has families, or
	// others if these overlap it. With simulated nodes, which have addresses of their own, and with a
	// Service range that overlaps all of these, empty means no range. A range of a default is not
	// assigned if a node has Pods outside it.
	ClusterCIDR string
	// ClusterDomain is the cluster's DNS domain; empty means cluster.local.
	ClusterDomain string

	// DatastoreEndpoint names the datastore:
	//
	//	(empty)                                the built-in datastore, in DataDir
	//	sqlite://DIR?durability=D&cache=BYTES  the built-in datastore in DIR; D is full, relaxed or memory
	//	memory://                              the built-in datastore, in memory only
	//	postgres://…, mysql://…                an external database
	//	http(s)://HOST:PORT,…                  the members of an etcd cluster
	DatastoreEndpoint string

	// ForkFrom is a file that `karve backup create` wrote, or the data directory of a cluster, which
	// may be running. The new cluster starts with the objects, certificates and keys of that one.
	// If DataDir is already a fork of it, ForkFrom changes nothing. Empty means no fork.
	ForkFrom string

	// Durability is the durability of the built-in datastore, full (the default) or relaxed. It
	// means the same as durability= in DatastoreEndpoint.
	Durability string
	// DatastoreCAFile, DatastoreCertFile and DatastoreKeyFile are for TLS to an etcd or an external
	// database.
	DatastoreCAFile, DatastoreCertFile, DatastoreKeyFile string
	// ClusterTokenFile is a file with the secret that the servers of a cluster share when they share a
	// datastore. The first of them stores the cluster's keys there, encrypted with it, and the others
	// fetch them. Empty means that the keys are copied by hand.
	ClusterTokenFile string
	// NewAuthorities permits a start with other authorities, or another key of service account tokens,
	// than those of the cluster in the datastore, which has a record of them. The value is the id of that
	// record, which the refused start has named. From the next start on it does nothing.
	NewAuthorities string
	// EtcdListen is a URL at which the server offers the etcd API in addition to its socket.
	// https://ADDRESS:PORT is for clients with a certificate of the etcd CA in DataDir/certs.
	// http:// with a loopback address is for root and the server's own user. Empty means the
	// socket only.
	EtcdListen string

	// NoSecretsEncryption lets a new cluster store Secrets as they are. Otherwise it gets a key for them, unless its datastore is
	// in memory, or is shared without a cluster token. A cluster that exists stays as it is.
	NoSecretsEncryption bool

	// NoKubeadmObjects leaves out the objects that `kubeadm join` needs, and leaves alone those that
	// exist.
	NoKubeadmObjects bool

	// NoControllers disables all controllers, and DisableScheduler the scheduler.
	// DisableControllers lists controllers to disable, by upstream's names or aliases.
	NoControllers      bool
	DisableControllers []string
	DisableScheduler   bool

	// SSHUser is the user on the nodes through whose SSH servers the API server reaches nodes, Pods and
	// Services. Empty means that it connects to them directly.
	SSHUser string
	// SSHKeyFile is the private key for SSHUser. If it is empty, the server makes a key in
	// DataDir/ssh.
	SSHKeyFile string
	// SSHJump is a bastion, USER@HOST or USER@HOST:PORT, through which the nodes are reached. Empty means
	// none.
	SSHJump string
	// SSHKnownHosts is the file with the pinned host keys of the nodes and the bastion; empty means
	// DataDir/ssh/known_hosts.
	SSHKnownHosts string
	// SSHPort is the port of the nodes' SSH servers; 0 means 22.
	SSHPort int

	// SimulateNodes are groups of nodes that this process simulates (see package simulate): a number, or also what the nodes have, such as
	// "2,zone=eu-a,nvidia.com/gpu=8" ([groups.Parse]).
	SimulateNodes []string
	// SimulatePods are defaults for all Pods of simulated nodes, as NAME=VALUE: annotations without
	// their prefix, simulate.karve/. Annotations of a Namespace take precedence, and those of a Pod.
	SimulatePods []string
	// SimulateListen lists addresses of this machine, as ADDRESS:PORT, at which processes may answer for
	// Pods of simulated nodes. Whoever may create Pods can then reach these processes. None by default.
	SimulateListen []string

	// APIServerArgs, ControllerManagerArgs and SchedulerArgs are options of upstream's commands,
	// as name=value. They override Karve's defaults.
	APIServerArgs, ControllerManagerArgs, SchedulerArgs []string

	// StartTimeout limits the startup of each part up to the API server, which has to serve by then. 0 means five
	// minutes, which is enough for the slowest board. The other parts try again until they succeed, because
	// what somebody has written through the API may keep them from it.
	StartTimeout time.Duration
	// RequireReady makes Run fail if the control plane is not ready StartTimeout after the API server has
	// begun to serve. It is for clusters that nobody repairs.
	RequireReady bool
	// StopTimeout limits the termination of the API server, not counting its
	// --shutdown-delay-duration. 0 means one minute, which is as long as a request may take
	// (--request-timeout). systemd allows a minute, too.
	StopTimeout time.Duration

	// MemoryLimit is a soft limit, in bytes, on the memory of this process' Go runtime. With a
	// limit, Karve also tunes the garbage collector for a server: see package memory, whose Limit
	// parses or chooses one. 0 leaves the collector as it is.
	MemoryLimit int64

	// SettleAfter is the time between ready and settling. In its first quiet second after that, the
	// server returns the memory that its startup needed. 0 suits a server that keeps running. With any
	// other value the garbage collector works less until then. A cluster for a short command is then
	// ready sooner and uses more memory.
	SettleAfter time.Duration

	// Upstream lists the deviations that are switched off, so that upstream's code runs in place
	// of Karve's. deviations.Table has the names; "all" means every one. It is for tests, and for
	// finding out whether Karve or upstream causes a problem. A few deviations apply to the whole
	// process, and so to its other control planes.
	Upstream []string

	// Log is the server's log; nil means standard error, from level info up.
	Log *logrus.Logger `json:"-"`
	// The server calls Ready once, when everything is ready. It may be nil.
	Ready func(Info) `json:"-"`
	// The server calls Progress every few seconds during startup. It may be nil.
	Progress func(Progress) `json:"-"`

	routers       func(ours, upstreams restful.RouteSelector, services []*restful.WebService)
	machine       machine // for tests: this machine's addresses
	unknownOwners bool    // for tests: acts as if OwnersKnown were false
}

// OwnersKnown is true if this system reports which user opened a connection. Without that, the
// insecure port would make every local user, every program and, with Docker Desktop, every
// container an administrator.
const OwnersKnown = insecure.OwnersKnown

// The defaults of Config.
const (
	DefaultSecurePort            = 6443
	DefaultInsecurePort          = 8080
	DefaultServiceClusterIPRange = "10.96.0.0/12"
	DefaultClusterCIDR           = "10.244.0.0/16"
	DefaultClusterCIDRv6         = "fd00:10:244::/56"
	DefaultBackupRetention       = 7
	DefaultClusterDomain         = "cluster.local"
	defaultStartTimeout          = 5 * time.Minute
	defaultStopTimeout           = time.Minute
)

// Info describes a control plane that is ready.
type Info struct {
	// URL is the URL of the secure listener, at an address of this machine.
	URL string
	// InsecureURL is the URL of the insecure listener; empty if there is none. A client in this
	// process needs the dialer [insecure.Dial].
	InsecureURL string
	// PageURL is the URL of the page for people: at the insecure listener, if there is one.
	PageURL string
	// EtcdURL is the URL of the etcd API (--etcd-listen); empty if it has only its socket.
	EtcdURL string
	// Kubeconfig is the path of the admin's kubeconfig.
	Kubeconfig string
	// Took is the time from the call of Run until everything was ready.
	Took time.Duration
	// Slowest lists the parts that took longest to start, the slowest first.
	Slowest []lifecycle.Span
}

// Progress describes how far a startup is, for users who wait for it.
type Progress = lifecycle.Progress

// NoDataDir returns the error for an empty DataDir.
func NoDataDir() error {
	if _, err := os.UserHomeDir(); err != nil {
		return fmt.Errorf("--data-dir has no default, because %w: name a directory", err)
	}
	return errors.New("--data-dir: needs a directory")
}

// completed is a Config whose defaults are filled in. complete makes it.
type completed struct{ Config }

// complete fills in the defaults.
func (c Config) complete() completed {
	c.InsecureBindAddress = cmp.Or(c.InsecureBindAddress, "127.0.0.1")
	c.ServiceClusterIPRange = cmp.Or(c.ServiceClusterIPRange, DefaultServiceClusterIPRange)
	c.ClusterDomain = cmp.Or(c.ClusterDomain, DefaultClusterDomain)
	c.WriteKubeconfigMode = cmp.Or(c.WriteKubeconfigMode, 0o600)
	c.BackupRetention = cmp.Or(c.BackupRetention, DefaultBackupRetention)
	c.StartTimeout = cmp.Or(c.StartTimeout, defaultStartTimeout)
	c.StopTimeout = cmp.Or(c.StopTimeout, defaultStopTimeout)
	if c.Log == nil {
		c.Log, _ = logbridge.New(os.Stderr, "text", "info") // these are valid
	}
	if abs, err := filepath.Abs(c.DataDir); err == nil && c.DataDir != "" {
		c.DataDir = withoutLinks(abs)
	}
	if abs, err := filepath.Abs(cmp.Or(c.ManifestsDir, filepath.Join(c.DataDir, "manifests"))); err == nil {
		c.ManifestsDir = abs
	}
	if c.BackupDir == "" {
		c.BackupDir = filepath.Join(c.DataDir, snapshots.BackupsDir)
	} else if abs, err := filepath.Abs(c.BackupDir); err == nil {
		c.BackupDir = abs
	}
	return completed{c}
}

// withoutLinks returns what an absolute path leads to now, and will lead to when a link in it is changed. Its end need not exist.
func withoutLinks(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if above := filepath.Dir(path); above != path {
		return filepath.Join(withoutLinks(above), filepath.Base(path))
	}
	return path
}

// Validate reports every problem of the configuration that it can find without starting anything.
// The error joins them, and each names its option. Validate changes no file. It changes one setting
// of the process while it runs: the feature gates that the configuration asks for, which upstream's
// own validation reads.
func (c Config) Validate(ctx context.Context) error {
	_, err := c.complete().parse().validate(ctx)
	return err
}

// Ports returns the ports that the configuration asks for. It leaves out a port that
// [Config.Validate] refuses, because that error describes the problem better.
func (c Config) Ports() []ports.Port { return c.complete().parse().ports }
