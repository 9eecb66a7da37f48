package server

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/bootstrap/kubeadm"
	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/memory"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/certificates"
	"github.com/karve-k8s/karve/server/controllers"
	"github.com/karve-k8s/karve/server/controllers/replacements"
	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/lifecycle"
	"github.com/karve-k8s/karve/server/loopback"
	"github.com/karve-k8s/karve/server/manifests"
	"github.com/karve-k8s/karve/server/membership"
	"github.com/karve-k8s/karve/server/page"
	"github.com/karve-k8s/karve/server/ports"
	"github.com/karve-k8s/karve/server/scheduler"
	"github.com/karve-k8s/karve/server/snapshots"
	"github.com/karve-k8s/karve/server/storage"
)

// controlPlane has the parts of one control plane, and announces when it is ready. A part asks for
// what it needs of other parts when it starts. These other parts are then ready.
type controlPlane struct {
	*plan
	start     *lifecycle.Start
	collector *memory.Collector // nil if the garbage collector is not tuned
	claim     *claim
	loopback  *loopback.Server

	membership   *membership.Part
	certificates *certificates.Certificates
	storage      *storage.Storage
	control      *snapshots.Control
	backups      *snapshots.Scheduled // nil without a schedule
	api          *apiserver.Part
	controlling  *controllers.Controllers // nil if they are disabled
	scheduling   *scheduler.Scheduler     // nil if it is disabled
	simulation   *simulation              // nil without simulated nodes
	tunnels      *sshTunnels              // nil without --ssh-user
	joining      *joining
	manifests    *manifests.Manifests
	first        *lifecycle.FirstObjects

	notices atomic.Pointer[[]string] // for karve status
	hour    *page.Hour
}

// The names of the parts, as users see them.
const (
	directoryPart    = "data directory"
	backupsPart      = "scheduled backups"
	certificatesPart = "certificates"
	datastorePart    = "datastore"
	membershipPart   = "cluster membership"
	controlPart      = "control socket"
	apiserverPart    = "API server"
	controllersPart  = "controllers"
	schedulerPart    = "scheduler"
	simulationPart   = "simulated nodes"
	tunnelsPart      = "SSH tunnels"
	tunnelNodesPart  = "nodes behind SSH tunnels"
	firstObjectsPart = "first objects"
	joiningPart      = "objects for kubeadm join"
	stepsPart        = "replaced keys"
	tokensPart       = "tokens in Secrets"
	manifestsPart    = "manifests"
)

// assemble makes the parts without starting them.
func assemble(p *plan, c *claim, begun *lifecycle.Start) *controlPlane {
	s := &controlPlane{plan: p, claim: c, start: begun}
	s.notices.Store(&[]string{})
	s.hour = page.NewHour(begun.Began(), func() int64 { return memory.Anonymous(os.Getpid()) })
	s.loopback = loopback.NewServer(p.Log.Errorf)
	s.certificates = certificates.New(s.certificatesConfig())
	s.storage = storage.New(s.storageConfig())
	s.membership = s.joins()
	s.joining = &joining{
		plan: p, claim: c, store: s.certificates.Store, again: make(chan struct{}, 1),
		client: func() *rest.Config { return s.clients().Config(kubeadm.Component, certs.Admin) },
	}
	s.manifests = manifests.New(manifests.Options{Dir: p.ManifestsDir, Election: p.election, Connect: s.adminClient, Changed: s.joining.follow, Log: p.Log})
	s.control = snapshots.New(snapshots.Options{
		DataDir: p.DataDir, Held: c.held, Files: p.usersFiles(), ManifestsDir: p.ManifestsDir, CheckReset: p.checkReset,
		Log: p.Log, Manifests: s.manifests, Page: s.pageURL, Connect: s.snapshotsConnection, Encryption: p.usersEncryption(),
		Notices: func() []string { return *s.notices.Load() },
	})
	s.backups = s.scheduledBackups()

	s.api = &apiserver.Part{Configure: s.configureAPIServer}
	if p.controllers != nil {
		o := controllers.Options{Upstream: p.controllers, Election: p.election, Deviations: p.deviations, Connect: s.controllersConnection, Blocked: s.start.Blocked(controllersPart)}
		o.NoPodRanges = s.joining.logNoPodRanges
		s.controlling = controllers.New(o)
		s.joining.assigns = s.controlling.AssignsPodRanges
	}
	if p.scheduler != nil {
		s.scheduling = scheduler.New(scheduler.Options{Upstream: p.scheduler, Deviations: p.deviations, Identity: p.identity, Log: p.Log, Connect: s.schedulerConnection, Blocked: s.start.Blocked(schedulerPart)})
	}
	if p.simulatedNodes() > 0 {
		s.simulation = newSimulation(p, s.notice, s.simulationConnection)
	}
	if p.ssh != nil {
		s.tunnels = &sshTunnels{sshPlan: p.ssh, dataDir: p.DataDir, log: p.Log, certificates: s.certificates.Store, connect: s.sshConnection}
	}
	s.announces()
	s.first = &lifecycle.FirstObjects{Client: s.adminClient, Missing: func(err error) {
		s.Log.Warnf("the cluster goes on without an object that a new Pod may need: %v", lifecycle.Explain(err))
	}}
	for _, r := range p.services {
		s.first.Services = append(s.first.Services, r.String())
	}
	s.first.Differs = func(first []string) {
		notice := fmt.Sprintf("--service-cluster-ip-range %s has no effect: the ServiceCIDR kubernetes has %s. Name that range again, or create another ServiceCIDR with the new one",
			s.ServiceClusterIPRange, strings.Join(first, ","))
		s.notice(notice)
	}
	if p.simulatedNodes() == 0 && p.privateStorage() {
		s.first.Then = s.noticeSimulated
	}
	if p.controllers != nil {
		s.first.ServiceAccounts = p.controllers.MakesServiceAccounts()
	}
	return s
}

// notice tells the log and karve status what a user should know.
func (s *controlPlane) notice(text string) {
	s.Log.Warn(text)
	for was := s.notices.Load(); !slices.Contains(*was, text); was = s.notices.Load() {
		if all := append(slices.Clone(*was), text); s.notices.CompareAndSwap(was, &all) {
			return
		}
	}
}

// parts returns the parts in the order in which they start. They stop in reverse order:
//
//   - The datastore stops after the parts that write to it. The control socket stops before it, so
//     that none of its requests uses a closed engine.
//   - The SSH tunnels stop after the API server, whose open connections use them.
//   - The controllers and the scheduler stop before the API server, because their watches would
//     delay its shutdown, and because they give their leases back.
//   - What acts only while the controllers do stops before them: the simulated nodes, the objects for
//     kubeadm join and the manifests.
//
// What does its work through the API is tried again until it succeeds (lifecycle.Retried), and its start has no limit:
// see lifecycle/blocked.go. The scheduler uses informers of the controllers, and waits for them itself. With
// --etcd-listen, the datastore accepts TLS connections when the certificates are issued.
func (s *controlPlane) parts() []lifecycle.Part {
	var all []lifecycle.Part
	add := func(name string, run func(context.Context, func()) error, needs ...string) {
		all = append(all, s.start.Limited(name, run, needs...))
	}
	addRetried := func(name string, run func(context.Context, func()) error) {
		all = append(all, s.start.Retried(name, run, s.start.SetBlocked(name), apiserverPart))
	}

	add(directoryPart, s.keepDirectories)
	add(datastorePart, s.storage.Run)
	add(membershipPart, s.membership.Run, datastorePart)
	add(certificatesPart, s.certificates.Run, membershipPart)
	add(controlPart, s.control.Run, membershipPart)
	needs := []string{certificatesPart}
	if s.tunnels != nil {
		add(tunnelsPart, s.tunnels.Run, certificatesPart)
		needs = append(needs, tunnelsPart)
	}
	all = append(all, s.start.Serving(apiserverPart, s.runAPIServer, s.api.LastError, needs...))
	if s.tunnels != nil {
		addRetried(tunnelNodesPart, s.tunnels.follow)
	}
	if s.controlling != nil {
		all = append(all, s.start.Retried(controllersPart, s.controlling.Run, s.controlling.SetBlocked, apiserverPart))
	}
	if s.scheduling != nil {
		all = append(all, s.start.Retried(schedulerPart, s.scheduling.Run, s.scheduling.SetBlocked, apiserverPart))
	}
	if s.simulation != nil {
		addRetried(simulationPart, s.simulation.Run)
	}
	if !s.NoKubeadmObjects && s.actsForCluster() {
		addRetried(joiningPart, s.joining.Run)
	}
	if !s.privateStorage() {
		addRetried(stepsPart, s.membership.PublishSteps)
	}
	if s.NewAuthorities != "" {
		addRetried(tokensPart, s.membership.RenewTokens)
	}
	if s.actsForCluster() {
		addRetried(manifestsPart, s.manifests.Run)
	}
	if s.backups != nil {
		addRetried(backupsPart, s.backups.Run)
	}
	addRetried(firstObjectsPart, s.first.Run)
	return all
}

func (s *controlPlane) certificatesConfig() certificates.Config {
	c := certificates.Config{
		DataDir: s.DataDir, SANs: s.TLSSANs, ServiceIPs: s.serviceIPs, ClusterDomain: s.ClusterDomain, Etcd: s.claim.etcd != nil,
		Server: s.claim.url(), KubeconfigCopy: s.WriteKubeconfig, KubeconfigCopyMode: s.WriteKubeconfigMode, Log: s.Log,
		DatastoreClient: s.DatastoreCertFile,
	}
	if ip := s.advertise.IP(); ip != nil { // with NAT, no interface has this address
		c.Addresses = append(c.Addresses, ip)
	}
	for _, e := range []*endpoint{s.endpoint, s.users} {
		if e != nil {
			c.SANs = append(slices.Clone(c.SANs), e.host)
		}
	}
	if s.users != nil {
		c.Advertised = s.users.url()
	}
	for _, l := range []net.Listener{s.claim.secure, s.claim.etcd} {
		if l != nil {
			if ip := l.Addr().(*net.TCPAddr).IP; !ip.IsUnspecified() {
				c.Addresses = append(c.Addresses, ip)
			}
		}
	}
	if s.TLSCertFile != "" { // for this name, the server presents Karve's certificate
		_, port, _ := net.SplitHostPort(ports.Local(s.claim.secure))
		c.Server = "https://" + net.JoinHostPort("localhost", port)
	}
	return c
}

func (s *controlPlane) storageConfig() storage.Config {
	c := storage.Config{
		Location: s.location, DataDir: s.DataDir, Lock: s.claim.storage(), MemoryLimit: s.MemoryLimit,
		CAFile: s.DatastoreCAFile, CertFile: s.DatastoreCertFile, KeyFile: s.DatastoreKeyFile,
		Committed: s.hour.Commit, Contents: s.fork.Contents, Dial: !s.plan.deviations.On(deviations.StorageClient),
		Log:        s.Log,
		Status:     func(text string) { s.start.Waits(datastorePart, text) },
		OnProgress: func(what string, done, total int64) { s.start.Report(datastorePart, what, done, total) },
	}
	if s.etcdListen != nil {
		c.EtcdAPI = &storage.EtcdAPI{
			Listener: s.claim.etcd, URL: s.etcdURL(), Secure: s.etcdListen.Secure,
			CertsDir: certificates.Dir(s.DataDir), Certificates: s.certificates.Store,
		}
		if s.etcdListen.Secure { // the etcd API reads the certificate for each connection
			c.EtcdAPI.Listener = s.certificates.Covering(s.claim.etcd, "")
		}
	}
	return c
}

func (s *controlPlane) snapshotsConnection() snapshots.Connection {
	forget := func() {}
	if s.controlling != nil {
		forget = s.controlling.ForgetAbsentOwners
	}
	return snapshots.Connection{
		Engine: s.storage.Connection().Engine, Ready: s.start.IsReady, Tunnels: s.tunnels.status, WasReset: s.joining.follow,
		Begun: s.awaitFirstWrites, Forget: forget,
	}
}

// scheduledBackups returns the part that makes backups; nil without a schedule, or without a datastore to back up.
func (s *controlPlane) scheduledBackups() *snapshots.Scheduled {
	switch {
	case s.plan.backups == nil:
		return nil
	case !s.location.BuiltIn() || s.location.InMemory():
		s.Log.Warnf("--backup-schedule has no effect: the datastore is not the built-in one on the disk")
		return nil
	}
	return &snapshots.Scheduled{
		Options:  snapshots.Options{DataDir: s.DataDir, Held: s.claim.held, Files: s.usersFiles(), ManifestsDir: s.ManifestsDir, Log: s.Log, Connect: s.snapshotsConnection},
		Schedule: s.plan.backups, Dir: s.BackupDir, Keep: s.BackupRetention, Report: reportBackup(s.adminClient, s.Log),
	}
}

// awaitFirstWrites waits for what controllers write to every cluster at their start.
func (s *controlPlane) awaitFirstWrites(ctx context.Context) error {
	if s.controlling == nil {
		return nil
	}
	client, err := kubernetes.NewForConfig(s.adminClient())
	if err != nil {
		return err
	}
	return s.controlling.AwaitFirstWrites(ctx, client)
}

func (s *controlPlane) controllersConnection() controllers.Connection {
	clients, api := s.clients(), s.api.Server()
	c := controllers.Connection{
		Client: clients.Config(controllers.Component, certs.ControllerManager), Anonymous: clients.Anonymous(controllers.Component),
		Certificates: s.certificates.Store(), Informers: api.Informers(),
	}
	if s.privateStorage() {
		c.Writes = &replacements.Writes{
			Admission: api.Informers().Core().V1().Namespaces().Informer().GetStore(),
			Requests:  api.WritesEnd, Engine: s.storage.Connection().Engine.Barrier,
		}
	}
	return c
}

func (s *controlPlane) schedulerConnection() scheduler.Connection {
	c := scheduler.Connection{Client: s.clients().Config(scheduler.Component, certs.Scheduler), Informers: s.api.Server().Informers()}
	if s.controlling != nil && s.election == nil { // otherwise they may stop before the scheduler
		c.Controllers = s.controlling
	}
	return c
}

func (s *controlPlane) simulationConnection() simulationConnection {
	return simulationConnection{
		client: s.clients().Config("kubelet", certs.Admin), informers: s.api.Server().Informers(), certificates: s.certificates.Store(),
	}
}

func (s *controlPlane) sshConnection() sshConnection {
	api := s.api.Server()
	return sshConnection{client: s.adminClient(), informers: api.Informers(), addressTypes: api.NodeAddressTypes()}
}

// clients returns the clients for the parts in this process.
func (s *controlPlane) clients() loopback.Clients {
	return loopback.Clients{
		Server: s.loopback, Store: s.certificates.Store(), Host: s.claim.url(),
		Connect: !s.plan.deviations.On(deviations.Loopback),
	}
}

// etcdURL returns the URL of the etcd API (--etcd-listen), or nothing if it has only its socket.
func (s *controlPlane) etcdURL() string {
	if s.etcdListen == nil {
		return ""
	}
	scheme := "http://"
	if s.etcdListen.Secure {
		scheme = "https://"
	}
	address := s.claim.etcd.Addr().(*net.TCPAddr)
	if ip := s.advertise.IP(); address.IP.IsUnspecified() && ip != nil { // clients on other machines need it
		return scheme + net.JoinHostPort(ip.String(), strconv.Itoa(address.Port))
	}
	return scheme + ports.Local(s.claim.etcd)
}
