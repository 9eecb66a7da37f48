// Package options is the options of karve: those of `karve server` with their defaults
// (server.go, with the field that each sets), and how they are read from the command line, variables and the configuration
// file, explained (help.go), and refused (mistakes.go).
package options

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/internal/memory"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/simulate"
	"github.com/karve-k8s/karve/simulate/groups"
)

// The sections of `karve server --help`, in order.
const (
	general     = "GENERAL"
	listeners   = "LISTENERS"
	identity    = "CERTIFICATES AND KUBECONFIG"
	network     = "CLUSTER NETWORK"
	storage     = "DATASTORE"
	reaching    = "REACHING NODES"
	components  = "CONTROLLERS AND SCHEDULER"
	simulation  = "SIMULATED NODES"
	passThrough = "OPTIONS OF KUBERNETES' COMPONENTS"
)

// Server returns the options of `karve server`: Karve's own, then those of kube-apiserver that
// have the same name here.
func Server() []cli.Flag {
	var list []cli.Flag
	for _, o := range table(&server.Config{}) {
		list = append(list, o.Flag)
	}
	upstream, err := apiserver.UserFlags()
	if err != nil {
		panic(err) // a test makes sure
	}
	for _, f := range upstream {
		if usage := f.Usage; f.Bool {
			list = append(list, yes(nil, f.Section, f.Name, usage).Flag)
		} else {
			list = append(list, texts(nil, f.Section, f.Name, "`VALUE`: "+usage).Flag)
		}
	}
	return list
}

// table binds each option of Karve's own to a field of c. In a usage, the first sentence is what the short help
// shows, and a word in backquotes stands for the value.
func table(c *server.Config) []option {
	insecurePort := 0
	if server.OwnersKnown {
		insecurePort = server.DefaultInsecurePort
	}
	return []option{
		{Flag: Config()},
		bound(DataDir(), &c.DataDir),
		text(&c.ManifestsDir, general, "manifests-dir", "", "`DIR` whose YAML and JSON files are applied to the cluster when they change (default: manifests in the data directory)"),
		text(nil, general, "log-level", "info", "`LEVEL` of the log: error, warning, info, debug or trace. From debug on, the log has upstream's info lines too."),
		text(nil, general, "log-format", "text", "`FORMAT` of the log: text or json"),
		text(&c.AuditPreset, general, apiserver.AuditOption, "", "`NAME` of what the audit log has: metadata (who did what), writes (what was changed, with the requests), or full (all requests and answers). Contents of Secrets and tokens are never logged. The log is audit/audit.log in the data directory, at most 300 MB; with --audit-log-path, only --audit-log-max… limit it. (default: no log, unless --audit-policy-file names a policy)"),
		parsed(text(nil, general, "memory-limit", memory.Auto, "soft memory limit, a `SIZE` such as 200Mi. auto is GOMEMLIMIT or, if that is not set, what the control group or the machine has to spare."), func(s string) (err error) {
			c.MemoryLimit, err = memory.Limit(s)
			if err == nil && c.MemoryLimit < memory.Least { // only GOMEMLIMIT can be
				c.MemoryLimit = 0
				return fmt.Errorf("GOMEMLIMIT=%s: want at least %dMi", os.Getenv("GOMEMLIMIT"), memory.Least>>20)
			}
			return err
		}),
		duration(&c.SettleAfter, general, "settle-after", 0, "`DURATION` after which a ready server gives back the memory of its start. A cluster that only lives for a short time starts faster with more than 0, and uses more memory."),
		duration(&c.StartTimeout, general, "start-timeout", 5*time.Minute, "`DURATION` that each part may take to start, up to the API server. What uses the API is tried until it succeeds."),
		list(&c.Upstream, general, "upstream", "run upstream's code instead of Karve's, to find out which of them has a problem. `NAMES` of deviations, separated by commas, or all; list prints them (see docs/deviations.md)."),
		yes(nil, general, "stop-with-stdin", "stop when standard input ends, for example because the process at the other end of a pipe has exited"),

		text(&c.BindAddress, listeners, "bind-address", "", "`IP` address of the secure listener (default: all addresses)"),
		number(&c.SecurePort, listeners, "secure-port", server.DefaultSecurePort, "`PORT` of the secure listener; 0 picks a free one"),
		text(&c.AdvertiseAddress, listeners, "advertise-address", "", "`IP` address at which nodes and Pods reach this server (default: the address of the default route, and another when the machine has lost it). With a loopback address, the Service kubernetes has no endpoints."),
		text(&c.AdvertiseURL, listeners, "advertise-url", "", "`URL` at which users reach the cluster, such as https://karve.example:6443 of a load balancer. The serving certificate contains the host, and karve kubeconfig prints the URL. (default: this server)"),
		text(&c.ControlPlaneEndpoint, listeners, "control-plane-endpoint", "", "`HOST` or HOST:PORT at which nodes reach the API server, such as a load balancer (default: host and port of --advertise-url, else the advertised address and the secure port). kubeadm join gets it from the cluster, and the serving certificate contains it."),
		text(&c.InsecureBindAddress, listeners, "insecure-bind-address", "127.0.0.1", "`IP` address of the insecure listener"),
		number(&c.InsecurePort, listeners, "insecure-port", insecurePort, "`PORT` of the listener without authentication; 0 switches it off, -1 picks a free one. On systems other than Linux, it is off by default."),
		yes(&c.InsecureAllowRemote, listeners, "insecure-allow-remote", "allow an --insecure-bind-address that is not loopback. Everybody who can reach it is an administrator."),
		yes(&c.InsecureAnyUser, listeners, "insecure-any-user", "accept every local user at the insecure port as an administrator, and containers that share this machine's network. Without it, only root and the server's own user are accepted. Systems other than Linux do not report which user connects: there, the port needs it."),
		list(&c.SocketGroups, listeners, "socket-group", "let members of a Unix group use the API by "+control.APISocket+" in the data directory, as members of a group of Kubernetes: `UNIXGROUP=GROUP`. Repeat it, or separate several with commas. Root and the server's user are administrators there."),
		yes(&c.DisableHTTP2, listeners, "disable-http2", "serve HTTP/1.1 only"),

		list(&c.TLSSANs, identity, "tls-san", "`NAME` or address to add to the serving certificate. Repeat it, or separate several with commas."),
		text(&c.TLSCertFile, identity, "tls-cert-file", "", "`FILE` with your own serving certificate"),
		text(&c.TLSKeyFile, identity, "tls-private-key-file", "", "`FILE` with the private key of --tls-cert-file"),
		text(&c.WriteKubeconfig, identity, "write-kubeconfig", "", "`FILE` to which to write the admin's kubeconfig, too. Other clusters in it stay."),
		parsed(text(nil, identity, "write-kubeconfig-mode", "0600", "`MODE` of that file, if it has no other clusters"), func(s string) error {
			mode, err := strconv.ParseUint(s, 8, 9)
			if c.WriteKubeconfigMode = os.FileMode(mode); err != nil {
				return errors.New("want an octal mode such as 0640")
			}
			return nil
		}),

		text(&c.ServiceClusterIPRange, network, "service-cluster-ip-range", server.DefaultServiceClusterIPRange, "`CIDR` of Service addresses. For dual-stack, give an IPv4 and an IPv6 CIDR, separated by a comma."),
		text(&c.ClusterCIDR, network, "cluster-cidr", "", "`CIDR` of Pod addresses; each node gets a part of it. For dual-stack, give two, separated by a comma. (default: "+server.DefaultClusterCIDR+", for IPv6 "+server.DefaultClusterCIDRv6+")"),
		text(&c.ClusterDomain, network, "cluster-domain", server.DefaultClusterDomain, "DNS `DOMAIN` of the cluster"),
		yes(&c.NoSecretsEncryption, storage, "no-secrets-encryption", "let a new cluster store Secrets as they are: see karve secrets"),
		yes(&c.NoKubeadmObjects, network, "no-kubeadm-objects", "leave out the objects that kubeadm join needs, and leave alone those that exist"),

		bound(DatastoreEndpoint(), &c.DatastoreEndpoint),
		text(&c.Durability, storage, "durability", "", "`MODE` of the built-in datastore: full or relaxed (default: full). With full, every write is on the disk before it is acknowledged. relaxed writes less, for SD cards: a power cut may lose the last 100 ms, and the last 60 s of nodes' heartbeats."),
		text(&c.BackupSchedule, storage, "backup-schedule", "", "`TIMES` at which the server backs up the whole cluster to a file, in the syntax of cron, such as @daily or \"0 3 * * *\". What has not changed is not backed up again. (default: never)"),
		number(&c.BackupRetention, storage, "backup-retention", server.DefaultBackupRetention, "`NUMBER` of those backups that stay; older ones are removed"),
		text(&c.BackupDir, storage, "backup-dir", "", "existing `DIRECTORY` for those backups, such as one on another disk (default: backups in the data directory)"),
		text(&c.ForkFrom, storage, "fork-from", "", "start as a copy of another cluster: a `FILE` of karve backup create, or a data directory. The new cluster has the objects, certificates and keys of the other one, which may be running. If --data-dir is such a fork already, it goes on as it is."),
		bound(DatastoreCAFile(), &c.DatastoreCAFile),
		bound(DatastoreCertFile(), &c.DatastoreCertFile),
		bound(DatastoreKeyFile(), &c.DatastoreKeyFile),
		bound(ClusterTokenFile(), &c.ClusterTokenFile),
		bound(NewAuthorities(), &c.NewAuthorities),
		text(&c.EtcdListen, storage, "etcd-listen", "", "`URL` at which to serve the etcd API of the built-in datastore as well: https://ADDRESS:PORT. Clients need a certificate of certs/etcd-ca in the data directory. With a loopback address, http:// works too. (default: a socket in the data directory only)"),

		text(&c.SSHUser, reaching, "ssh-user", "", "reach nodes, Pods and Services through SSH as this `USER` of the nodes, which then need only the SSH port open (default: directly)"),
		bound(SSHKeyFile(), &c.SSHKeyFile),
		text(&c.SSHJump, reaching, "ssh-jump", "", "bastion, a `USER@HOST[:PORT]`, through which to reach the nodes' SSH servers"),
		bound(SSHKnownHosts(), &c.SSHKnownHosts),
		number(&c.SSHPort, reaching, "ssh-port", 22, "`PORT` of the nodes' SSH servers"),

		list(&c.DisableControllers, components, "disable-controllers", "`NAMES` of controllers to leave out, separated by commas"),
		yes(&c.NoControllers, components, "no-controllers", "leave out all controllers"),
		yes(&c.DisableScheduler, components, "disable-scheduler", "leave out the scheduler"),

		texts(&c.SimulateNodes, simulation, groups.Option, "`N` simulated nodes, for tests, or a group such as 2,zone=eu-a,cpu=4. Pods become ready, Jobs complete, and nothing is run (see docs/testing.md). Repeat it for more."),
		texts(&c.SimulatePods, simulation, simulate.PodsOption, "a default for all Pods of simulated nodes, as `NAME=VALUE`: the annotation "+simulate.Prefix+"NAME. Annotations of a Namespace or a Pod take precedence. Repeat it for more."),
		list(&c.SimulateListen, simulation, simulate.ListenOption, "`ADDRESS:PORT` of this machine at which a process may answer for Pods of simulated nodes (annotation "+simulate.Listen+"). Users who may create Pods can then reach it. Repeat it for more. (default: none)"),

		texts(&c.APIServerArgs, passThrough, "kube-apiserver-arg", "any option of kube-apiserver, as `NAME=VALUE`. Repeat it for more."),
		texts(&c.ControllerManagerArgs, passThrough, "kube-controller-manager-arg", "any option of kube-controller-manager, as `NAME=VALUE`. Repeat it for more."),
		texts(&c.SchedulerArgs, passThrough, "kube-scheduler-arg", "any option of kube-scheduler, as `NAME=VALUE`. Repeat it for more."),
	}
}
