package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/robfig/cron/v3"
	netutils "k8s.io/utils/net"

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

// parseRanges reads the ranges of Service and Pod addresses, and chooses the address to advertise.
func (d *draft) parseRanges() {
	var err error
	d.services, err = parseCIDRs("service-cluster-ip-range", d.ServiceClusterIPRange)
	d.add(err)
	if d.ClusterCIDR == "" && d.SimulateNodes == 0 {
		d.ClusterCIDR, d.podsChosen = choosePodRanges(d.services), true
	}
	pods, err := parseCIDRs("cluster-cidr", d.ClusterCIDR)
	d.add(err)
	usable := d.services != nil
	for _, s := range d.services {
		if ones, bits := s.Mask.Size(); bits-ones < 3 { // as upstream, whose message does not name the option
			d.addf("--service-cluster-ip-range %s: want 8 addresses at least, such as a range of size /%d", s, bits-3)
			usable = false
		} else if bits == 128 && ones < 64 { // upstream takes it, and has no address for any Service
			d.addf("--service-cluster-ip-range %s: want an IPv6 range of size /64 at most", s)
		}
		for _, p := range pods {
			if overlap(s, p) {
				d.addf("--cluster-cidr %s overlaps --service-cluster-ip-range %s", p, s)
			}
		}
		ip, err := netutils.GetIndexedIP(s, 1)
		if err != nil {
			d.addf("--service-cluster-ip-range %s: %w", s, err)
			continue
		}
		d.serviceIPs = append(d.serviceIPs, ip)
	}
	d.parseSimulation()
	// Upstream's checks need ranges that can be used. With Karve's default in their place,
	// upstream repeats no problem that was reported above.
	if !usable {
		d.ServiceClusterIPRange = DefaultServiceClusterIPRange
	}
	ipv6 := len(d.services) > 0 && netutils.IsIPv6CIDR(d.services[0])
	d.advertise = newAdvertised(d.Config, ipv6)
}

// choosePodRanges returns the default of --cluster-cidr: a range for each family of Service
// addresses, apart from these. If the Service addresses leave none for one family, such as all of
// 10.0.0.0/8, it returns none at all: Pods of a dual-stack cluster need both.
func choosePodRanges(services []*net.IPNet) string {
	var chosen []string
	for _, s := range services {
		candidates := []string{DefaultClusterCIDR, "10.42.0.0/16"}
		if netutils.IsIPv6CIDR(s) {
			candidates = []string{DefaultClusterCIDRv6, "fd00:10:42::/56"}
		}
		i := slices.IndexFunc(candidates, func(c string) bool {
			_, pods, err := net.ParseCIDR(c)
			return err == nil && !overlap(s, pods)
		})
		if i < 0 {
			return ""
		}
		chosen = append(chosen, candidates[i])
	}
	return strings.Join(chosen, ",")
}

func overlap(a, b *net.IPNet) bool { return a.Contains(b.IP) || b.Contains(a.IP) }

// parseSimulation reports the problems of --simulate-nodes.
func (d *draft) parseSimulation() {
	if d.SimulateNodes < 0 || d.SimulateNodes > simulate.Most {
		d.addf("--simulate-nodes %d: want a number of nodes from 1 to %d, or 0 for none", d.SimulateNodes, simulate.Most)
		return
	}
	if d.SimulateNodes == 0 && len(d.SimulatePods)+len(d.SimulateListen) > 0 {
		d.addf("--%s and --%s are for simulated nodes: add --simulate-nodes N, or leave them out", simulate.PodsOption, simulate.ListenOption)
		return
	}
	var err error
	d.podTargets, err = simulate.ParseTargets(d.SimulateListen)
	d.add(err)
	for _, at := range d.podTargets {
		for _, own := range d.ports {
			if own.Number == int(at.Port()) {
				d.addf("--%s %s: its port is that of --%s, and Pods' clients must reach no port of the server: name another port", simulate.ListenOption, at, own.Option)
			}
		}
	}
	if err == nil {
		d.podDefaults, err = simulate.ParseDefaults(d.SimulatePods, d.podTargets)
		d.add(err)
	}
	if d.SimulateNodes == 0 || d.ClusterCIDR != "" {
		return
	}
	for _, s := range d.services {
		at, _ := netip.ParseAddr(s.IP.String())
		pods := simulate.PodRange(netutils.IsIPv6CIDR(s))
		if pods.Contains(at) || s.Contains(pods.Addr().AsSlice()) {
			d.addf("--simulate-nodes: Pods of simulated nodes have addresses of %s, which overlaps --service-cluster-ip-range %s: name another range with --cluster-cidr", pods, s)
		}
	}
}

// parseCIDRs parses one CIDR, or two of different families.
func parseCIDRs(flag, list string) ([]*net.IPNet, error) {
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
	if d.SimulateNodes > 0 && !d.actsForCluster() {
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
