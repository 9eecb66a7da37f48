package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/robfig/cron/v3"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/memory"
	"github.com/karve-k8s/karve/kine/location"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/controllers"
	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/election"
	"github.com/karve-k8s/karve/server/insecure"
	"github.com/karve-k8s/karve/server/membership"
	"github.com/karve-k8s/karve/server/ports"
	"github.com/karve-k8s/karve/server/scheduler"
	"github.com/karve-k8s/karve/server/snapshots"
	"github.com/karve-k8s/karve/server/storage"
	"github.com/karve-k8s/karve/simulate"
	"github.com/karve-k8s/karve/simulate/groups"
)

// A configuration becomes a plan in three steps. Each step has a type, so that none can be skipped:
//
//	Config ─ complete → completed ─ parse → draft ─ validate → plan
//
// parse reads every value once, into a type of its own. The parts get these types and parse
// nothing.

// plan is a valid configuration, with which a server can start.
type plan struct {
	completed // the values that need no parsing

	location     location.Location   // of the datastore
	backups      cron.Schedule       // nil: the server makes no backups by itself
	etcdListen   *storage.EtcdListen // nil: the socket only
	clusterToken *membership.Token   // nil without --cluster-token-file
	fork         snapshots.Fork
	auditPolicy  string       // of --audit-preset; empty: none
	services     []*net.IPNet // ranges of Service addresses
	podsChosen   bool         // ClusterCIDR is a default, and not the user's
	serviceIPs   []net.IP     // of the kubernetes Service: the first of each range
	advertise    *advertised
	users        *endpoint // of --advertise-url; nil without it
	endpoint     *endpoint // of --control-plane-endpoint, or its default; nil without both
	ports        []ports.Port
	socketGroups insecure.Groups
	deviations   deviations.Switches
	ssh          *sshPlan // nil: nodes are reached directly
	podDefaults  map[string]string
	podTargets   simulate.Targets
	nodeGroups   []groups.Group

	identity    string                // of this server among several
	controllers *controllers.Upstream // nil if they are disabled
	election    *election.Election    // of the server that runs the controllers; nil: no other can, or this one runs none (actsForCluster)
	scheduler   *scheduler.Upstream   // nil if it is disabled
}

// draft is a plan with the values that could be parsed, and the problems of the others.
type draft struct {
	plan
	problems
}

// problems collects errors; adding nil adds nothing.
type problems []error

func (p *problems) add(err error) {
	if err != nil {
		*p = append(*p, err)
	}
}

func (p *problems) addf(format string, args ...any) { p.add(fmt.Errorf(format, args...)) }

// The options that set a port.
const (
	securePort   = "secure-port"
	insecurePort = "insecure-port"
	etcdPort     = "etcd-listen"
)

// parse reads every value, and the files that values name. It changes nothing.
func (c completed) parse() *draft {
	d := &draft{plan: plan{completed: c}}
	if c.DataDir == "" {
		d.add(NoDataDir())
	}
	if info, err := os.Stat(c.BackupDir); err == nil && !info.IsDir() { // one that is missing may be on a disk that comes later
		d.addf("--backup-dir %s: is not a directory", c.BackupDir)
	}
	d.parseDatastore()
	d.parseAddresses()
	d.parseRanges()
	d.parseSSH()
	for _, san := range c.TLSSANs {
		if _, _, err := certs.ParseSAN(san); err != nil {
			d.addf("--tls-san: %w", err)
		}
	}
	d.add(checkKeyPair(c.TLSCertFile, c.TLSKeyFile))
	d.add(apiserver.CheckFiles(c.APIServerArgs))
	var err error
	d.auditPolicy, err = apiserver.AuditPolicy(c.AuditPreset, c.APIServerArgs)
	d.add(err)
	if d.deviations, err = deviations.Parse(c.Upstream); err != nil {
		d.addf("--upstream: %w", err)
	}
	if c.SettleAfter < 0 {
		d.addf("--settle-after %v: want 0 or more", c.SettleAfter)
	}
	if c.MemoryLimit < 0 || c.MemoryLimit > 0 && c.MemoryLimit < memory.Least {
		d.addf("--memory-limit %d: want at least %dMi", c.MemoryLimit, memory.Least>>20)
	}
	return d
}

// parseDatastore reads the location of the datastore, --etcd-listen, and --fork-from.
func (d *draft) parseDatastore() {
	d.add(checkFile("datastore-cafile", d.DatastoreCAFile))
	d.add(checkFile("datastore-certfile", d.DatastoreCertFile))
	d.add(checkFile("datastore-keyfile", d.DatastoreKeyFile))
	var err error
	if d.location, err = location.Parse(d.DatastoreEndpoint, d.Durability); err != nil {
		d.add(err)
		d.readClusterToken()
	} else if d.DataDir != "" {
		if d.location.Dir != "" {
			d.location.Dir = withoutLinks(d.location.Dir)
		}
		d.fork, err = snapshots.NewFork(d.ForkFrom, d.DataDir, d.location)
		d.add(err)
		d.parseClusterToken()
	}
	d.parseNewAuthorities()
	if d.BackupSchedule != "" {
		d.backups, err = snapshots.ParseSchedule(d.BackupSchedule)
		d.add(err)
	}
	if d.BackupRetention < 0 {
		d.addf("--backup-retention %d: want 1 or more", d.BackupRetention)
	}
	l, err := storage.ParseEtcdListen(d.EtcdListen)
	switch {
	case err != nil:
		d.add(err)
	case l == nil:
	case d.location.Etcd != nil:
		d.addf("--etcd-listen %s: the datastore is an etcd, which clients reach at its own address: leave the flag out", d.EtcdListen)
	case d.location.External != nil:
		d.addf("--etcd-listen %s: only the built-in datastore has the etcd API: leave the flag out, and give other servers the same --datastore-endpoint", d.EtcdListen)
	case !l.Secure && !d.ownersKnown():
		d.addf("--etcd-listen %s: %w, so every local user would be an administrator: use https://", d.EtcdListen, insecure.ErrOwnersUnknown)
	default:
		d.etcdListen = l
		d.ports = append(d.ports, ports.Port{Option: etcdPort, Address: l.Host, Number: l.Port})
	}
}

// parseAddresses reads the addresses and ports of the API server.
func (d *draft) parseAddresses() {
	errs := errors.Join(checkPort(securePort, d.SecurePort), checkAddress("bind-address", d.BindAddress))
	d.add(errs)
	if errs == nil {
		d.ports = append(d.ports, ports.Port{Option: securePort, Address: d.BindAddress, Number: d.SecurePort})
	}
	d.add(checkAdvertised(d.AdvertiseAddress))
	var err error
	d.users, err = parseAdvertiseURL(d.AdvertiseURL)
	d.add(err)
	d.endpoint, err = parseEndpoint(d.ControlPlaneEndpoint)
	d.add(err)
	if d.ControlPlaneEndpoint == "" && d.users != nil && !d.users.loopback() {
		d.endpoint = d.users
	}
	d.socketGroups, err = insecure.ParseGroups(d.SocketGroups)
	d.add(err)
	if len(d.SocketGroups) > 0 && !insecure.OwnersKnown {
		d.addf("--socket-group: this system does not tell the server who connects to a socket: leave it out, and give users a kubeconfig (karve kubeconfig --user)")
	}
	if d.DisableInsecure {
		return
	}
	errs = errors.Join(
		checkPort(insecurePort, d.InsecurePort),
		insecure.Check(d.InsecureBindAddress, d.InsecureAllowRemote),
		checkOwners(d.Config),
		checkPortsDiffer(d.Config))
	d.add(errs)
	if errs == nil {
		d.ports = append(d.ports, ports.Port{Option: insecurePort, Address: d.InsecureBindAddress, Number: d.InsecurePort, AnyFree: "-1"})
	}
}

// gates returns the feature gates that the configuration asks for. Upstream keeps the gates in one
// registry of the process. The server that holds gates there decides for all servers.
func (d *draft) gates() (*apiserver.Gates, error) { return apiserver.GatesOf(d.apiserverConfig()) }

// validate runs the validation of upstream's components, and returns the plan if there are no
// problems.
func (d *draft) validate(ctx context.Context) (*plan, error) {
	errs := d.problems
	// Upstream's validation and the defaults of its options depend on the gates.
	if gates, err := d.gates(); err == nil { // otherwise the next step reports it
		if release, err := gates.Hold(); err == nil {
			defer release()
		}
	}
	err := d.validateAPIServer(ctx)
	errs.add(err)
	// All three read the process' feature gates. One error about them is enough.
	gatesAreFine := !errors.Is(err, apiserver.ErrFeatureGates)
	d.identity, err = election.NewIdentity()
	errs.add(err)
	if d.simulatedNodes() > 0 && !d.actsForCluster() {
		errs.addf("--simulate-nodes with --no-controllers: other servers can use the datastore, and the one that runs the controllers simulates the nodes: leave out --simulate-nodes here, or --no-controllers")
	}
	if !d.NoControllers {
		d.controllers, err = controllers.Parse(controllers.Settings{
			Args: d.ControllerManagerArgs, Disabled: d.DisableControllers,
			ClusterCIDR: d.ClusterCIDR, ClusterCIDRChosen: d.podsChosen, ServiceClusterIPRange: d.ServiceClusterIPRange,
			Shared: !d.privateStorage(), FlexVolumes: d.path(flexVolumes),
		})
		if err == nil && gatesAreFine {
			err = d.controllers.Validate()
		}
		if err == nil {
			d.election = d.controllers.NewElection(d.identity, d.Log)
		}
		errs.add(err)
	}
	if !d.DisableScheduler {
		d.scheduler, err = scheduler.Parse(d.SchedulerArgs, !d.privateStorage())
		if err == nil && gatesAreFine {
			err = d.scheduler.Validate()
		}
		errs.add(err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return &d.plan, nil
}

// flexVolumes is the name of a directory in the data directory.
const flexVolumes = "flexvolume"

// path returns the path of a file in the data directory.
func (p *plan) path(name string) string { return filepath.Join(p.DataDir, name) }

// privateStorage reports whether no other process can use the storage: it is the built-in datastore,
// and --etcd-listen does not offer it to clients.
func (p *plan) privateStorage() bool { return p.location.BuiltIn() && p.etcdListen == nil }

// actsForCluster reports whether this server may do what one of several does beside the controllers. A server
// without controllers knows of no election, and another server may run them.
func (p *plan) actsForCluster() bool { return !p.NoControllers || p.privateStorage() }

// apiserverConfig returns the part of the API server's configuration that the plan determines.
func (p *plan) apiserverConfig() apiserver.Config {
	args := p.APIServerArgs
	if p.auditPolicy != "" {
		args = apiserver.AuditArgs(p.DataDir, args)
	}
	return apiserver.Config{
		Advertised:            p.advertise.source(),
		Deviations:            p.deviations,
		ServiceClusterIPRange: p.ServiceClusterIPRange,
		ClusterDomain:         p.ClusterDomain,
		DisableHTTP2:          p.DisableHTTP2,
		Args:                  args,
		BuiltIn:               p.location.BuiltIn(),
	}
}
