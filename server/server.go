// Package server runs a whole Kubernetes control plane in this process.
//
// Read [Run] first: it is the start-up sequence, top to bottom. Package lifecycle says how
// parts are started and stopped, config.go what a user can decide; each part has a file or a
// package: storage.go, apiserver, controllers, scheduler.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/internal/memory"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/controllers"
	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/insecure"
	"github.com/karve-k8s/karve/server/lifecycle"
	"github.com/karve-k8s/karve/server/loopback"
	"github.com/karve-k8s/karve/server/notify"
	"github.com/karve-k8s/karve/server/queues"
	"github.com/karve-k8s/karve/server/scheduler"
	"github.com/karve-k8s/karve/server/snapshots"
	"github.com/karve-k8s/karve/server/startup"
	"github.com/karve-k8s/karve/server/storage"
	"github.com/karve-k8s/karve/simulate"
)

// controlPlane is what the parts of one control plane share. Each field is set
// before the first part that reads it is started.
type controlPlane struct {
	Config
	log       *logrus.Logger
	began     time.Time
	trace     *startup.Trace
	systemd   *notify.Notifier
	lock      *datastore.Lock
	storeLock *datastore.Lock // of the datastore's directory; nil if it is the same
	secure    net.Listener
	plain     net.Listener // nil: switched off
	etcdAPI   net.Listener // nil: on its socket only
	advertise net.IP       // nil: the machine has no address to advertise
	certs     *certs.Store
	storage   *storage.Storage

	loopback  *loopback.Server
	api       atomic.Pointer[apiserver.Server] // nil before its part is built
	up        atomic.Bool                      // everything has been ready
	settling  sync.WaitGroup                   // what is done once everything is
	collector *memory.Collector                // nil: left alone
	stopping  atomic.Bool                      // systemd has been told

	kubeconfigs sync.Mutex // held while they are written
	published   bool       // they have been

	controllers *controllers.Controllers // nil: left out
	scheduler   *scheduler.Scheduler     // nil: left out
	first       firstObjects
	kubelet     simulate.Kubelet // of the simulated nodes
}

// newControlPlane prepares what needs no decision and can't fail.
func newControlPlane(c Config) *controlPlane {
	s := &controlPlane{Config: c.withDefaults(), began: time.Now()}
	s.trace = startup.New(s.began)
	s.log = s.Config.Log
	s.loopback = loopback.NewServer(s.log.Errorf)
	logbridge.Install(s.log)
	logbridge.Stopping(false)
	logbridge.Quiet(s.log, "kine")
	queues.EndLoops(s.switches().On(deviations.Queues))
	return s
}

// Run starts a control plane, says when it is ready (Config.Ready, sd_notify,
// the admin's kubeconfig), and runs it until ctx ends; then it stops the parts
// in reverse order and returns nil. An error says which part failed and why;
// what had started by then has been stopped.
//
// Several control planes in one process, one after another, are fine. At the same time
// they share upstream's global metrics, and must have the same feature gates: another
// one is refused with [apiserver.ErrOtherGates].
func Run(ctx context.Context, c Config) (err error) {
	s := newControlPlane(c)
	if s.MemoryLimit != 0 {
		s.collector = memory.Begin(s.MemoryLimit, s.SettleAfter > 0)
		defer s.collector.End()
	}
	defer s.settling.Wait()

	// Before anything of upstream's runs: the API server would tell systemd
	// that it is ready as soon as it listens, and unset the variable.
	s.systemd = notify.Take()

	// Everything that can be wrong is said at once, before anything is made.
	checked := s.trace.Part("configuration")
	if err := errors.Join(s.Validate(ctx), s.claim()); err != nil {
		s.release()
		return err
	}
	defer s.release()
	releaseGates, err := s.holdGates()
	if err != nil {
		return err
	}
	defer releaseGates()
	checked()
	fork, err := s.fork()
	if err != nil {
		return err
	}
	if err := fork.Make(ctx, s.trace, s.log); err != nil {
		return err
	}
	if err := s.makeStorage(fork); err != nil {
		return err
	}

	// The kubeconfig's presence means that the cluster answers.
	if err := removeKubeconfig(s.kubeconfigPath()); err != nil {
		return err
	}
	background, cancel := context.WithCancel(ctx)
	defer cancel()
	go s.systemd.Watchdog(background, s.healthy)
	defer s.writeFailedTrace()

	// Storage stops last, since all others write to it, and the control socket before it,
	// so that no request of it uses a closed engine. Controllers and scheduler
	// go before the API server does: their watches would hold it up. The scheduler
	// has informers from the controllers, which it waits for itself. The etcd API,
	// if it is served, shows a certificate.
	storageNeeds := []string(nil)
	if s.etcdAPI != nil {
		storageNeeds = []string{certificatesPart}
	}
	parts := []lifecycle.Part{
		{Name: certificatesPart, Run: s.runCertificates},
		{Name: datastorePart, Needs: storageNeeds, Run: s.storage.Run},
		{Name: controlPart, Needs: []string{datastorePart}, Run: snapshots.New(s.controlOptions()).Run},
		{Name: apiserverPart, Needs: []string{certificatesPart, datastorePart}, Run: s.runAPIServer},
	}
	if err := s.makeControllers(); err != nil {
		return err
	}
	if s.controllers != nil {
		parts = append(parts, lifecycle.Part{Name: controllersPart, Needs: []string{apiserverPart}, Run: s.controllers.Run})
	}
	if s.scheduler != nil {
		parts = append(parts, lifecycle.Part{Name: schedulerPart, Needs: []string{apiserverPart}, Run: s.scheduler.Run})
	}
	if s.SimulateNodes > 0 {
		parts = append(parts, lifecycle.Part{Name: simulationPart, Needs: []string{apiserverPart}, Run: s.runSimulation})
	}
	parts = append(parts, lifecycle.Part{Name: firstObjectsPart, Needs: []string{apiserverPart}, Run: s.runFirstObjects})
	for i, p := range parts {
		parts[i] = lifecycle.Traced(s.trace, lifecycle.Within(s.StartTimeout, p, s.lastErrorOf(p.Name)))
	}
	return lifecycle.Run(ctx, parts, s.doing, func() error { return s.ready(background) })
}

// holdGates gives the process the feature gates of the configuration, while it runs.
func (c Config) holdGates() (release func(), err error) {
	gates, err := apiserver.GatesOf(c.apiserverConfig(nil))
	if err != nil {
		return nil, err
	}
	return gates.Hold()
}

// The parts, by the names that users see.
const (
	certificatesPart = "certificates"
	datastorePart    = "datastore"
	controlPart      = "control socket"
	apiserverPart    = "API server"
	controllersPart  = "controllers"
	schedulerPart    = "scheduler"
	simulationPart   = "simulated nodes"
	firstObjectsPart = "first objects"
)

// claim takes what only one process can have: the data directory and the
// ports. Slow work comes later, so a mistake shows at once. What Validate has
// refused is not tried: its complaint is the better one.
func (s *controlPlane) claim() error {
	var errs problems
	var err error
	if checkDataDir(s.DataDir) == nil {
		if s.lock, err = s.lockDir(s.DataDir); err != nil {
			errs.add(fmt.Errorf("--data-dir: %w", err))
		}
	}
	if where, err := s.location(); err == nil && where.Dir != "" && filepath.Clean(where.Dir) != filepath.Clean(s.DataDir) {
		if s.storeLock, err = s.lockDir(where.Dir); err != nil {
			errs.add(fmt.Errorf("--datastore-endpoint: %w", err))
		}
	}
	for _, p := range s.Ports() {
		l, err := listen(p.Option, p.Address, p.Number)
		if err != nil {
			errs.add(err)
			continue
		}
		switch p.Option {
		case securePort:
			s.secure = l
		case insecurePort:
			s.plain = l
		case etcdPort:
			s.etcdAPI = l
		}
	}
	return errors.Join(errs...)
}

// lockDir locks a directory of the server's, unless this is root and the directory is a
// service's: the service could not open what root leaves there. `karve check` does not
// mind, since install.sh asks it as root about the service's directory.
func (s *controlPlane) lockDir(dir string) (*datastore.Lock, error) {
	if err := ownership.Check(dir); err != nil {
		return nil, err
	}
	lock, err := datastore.LockDir(dir)
	if err != nil {
		return nil, err
	}
	if err := mark(dir); mayStayUnmarked(err) {
		s.log.Warnf("%s has no mark that it is Karve's, by which install.sh knows it; the next start tries again: %v", dir, err)
	} else if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// release gives back what claim took. Listeners that the API server has are its
// own to close: upstream panics when one is closed under it, which would happen
// where its termination was given up.
func (s *controlPlane) release() {
	for _, l := range []net.Listener{s.secure, s.plain} {
		if l != nil && s.api.Load() == nil {
			l.Close()
		}
	}
	if s.etcdAPI != nil {
		s.etcdAPI.Close() // the shim has closed it, if it had it
	}
	for _, lock := range []*datastore.Lock{s.storeLock, s.lock} {
		if lock != nil {
			lock.Close()
		}
	}
}

// drainTimeout is how long requests under way at the insecure listener may take
// after the secure one has drained: none should be left.
const drainTimeout = 5 * time.Second

// apiserverConfig is the API server's share of the configuration, as far as it
// is known before anything is open.
func (c Config) apiserverConfig(advertise net.IP) apiserver.Config {
	return apiserver.Config{
		Deviations:            c.switches(),
		ServiceClusterIPRange: c.ServiceClusterIPRange,
		ClusterDomain:         c.ClusterDomain,
		DisableHTTP2:          c.DisableHTTP2,
		CompressLoopback:      c.CompressLoopback,
		AdvertiseAddress:      advertise,
		Args:                  c.APIServerArgs,
		BuiltIn:               c.builtIn(),
	}
}

func (s *controlPlane) runAPIServer(ctx context.Context, ready func()) (err error) {
	config := s.apiserverConfig(s.advertise)
	config.TerminationTimeout = s.StopTimeout
	config.SecureListener, config.InsecureListener = s.secure, s.plain
	config.Insecure = insecure.Options{
		AnyUser: s.InsecureAnyUser, AllowRemote: s.InsecureAllowRemote,
		DisableHTTP2: s.DisableHTTP2, ShutdownTimeout: drainTimeout,
		Log: logrus.NewEntry(s.log),
	}
	config.Log = s.log
	config.Step = s.stepsOf(apiserverPart)
	config.Routers = s.routers
	datastore := s.storage.Connection()
	config.Etcd = apiserver.Etcd{Endpoints: datastore.Endpoints, CAFile: datastore.CAFile, CertFile: datastore.CertFile, KeyFile: datastore.KeyFile}
	config.Store = datastore.Store
	if config.Bootstrap, err = s.bootstrapOptions(); err != nil {
		return err
	}
	config.Certificates = s.certificatePaths()
	if s.controllers != nil {
		config.ReadyChecks = append(config.ReadyChecks, healthz.NamedCheck("controllers", s.controllers.Check))
	}
	if s.scheduler != nil {
		config.ReadyChecks = append(config.ReadyChecks, healthz.NamedCheck("scheduler", s.scheduler.Check))
	}
	config.Loopback = s.loopback
	if s.SimulateNodes > 0 {
		config.Dial = s.kubelet.Dial
		config.Group = simulatedMetrics
	}
	config.SingleServer = s.ownsStorage()
	if config.ClockDoubted = s.clockDoubted; s.clockDoubted == nil {
		config.ClockDoubted = newClockDoubt(machineClock(), timesyncd).doubted
	}
	defer s.loopback.Close()
	api, err := apiserver.New(ctx, config)
	if err != nil {
		return err
	}
	s.api.Store(api)
	return api.Run(ctx, ready)
}

// makeControllers prepares the controllers and the scheduler, unless they are left out.
func (s *controlPlane) makeControllers() error {
	if !s.NoControllers {
		o, err := s.controllerOptions()
		if err != nil {
			return err
		}
		s.controllers = controllers.New(controllers.Options{Upstream: o, Deviations: s.switches(), Step: s.stepsOf(controllersPart), Connect: func() controllers.Connection {
			clients, api := s.clients(), s.api.Load()
			c := controllers.Connection{
				Client: clients.Config(certs.ControllerManager), Anonymous: clients.Anonymous(),
				Certificates: s.certs, Informers: api.Informers(),
			}
			if s.ownsStorage() {
				c.Writes = &controllers.Writes{Requests: api.WritesEnd, Engine: s.storage.Connection().Engine.Barrier}
			}
			return c
		}})
	}
	if !s.DisableScheduler {
		o, err := scheduler.Parse(s.SchedulerArgs)
		if err != nil {
			return err
		}
		s.scheduler = scheduler.New(scheduler.Options{Upstream: o, Deviations: s.switches(), Step: s.stepsOf(schedulerPart), Connect: func() scheduler.Connection {
			c := scheduler.Connection{Client: s.clients().Config(certs.Scheduler), Informers: s.api.Load().Informers()}
			if s.controllers != nil {
				c.Controllers = s.controllers.Informers
			}
			return c
		}})
	}
	return nil
}

// controllerOptions are what the user decided about the controllers.
func (c Config) controllerOptions() (*controllers.Upstream, error) {
	return controllers.Parse(controllers.Settings{
		Args: c.ControllerManagerArgs, Disabled: c.DisableControllers,
		ClusterCIDR: c.ClusterCIDR, ServiceClusterIPRange: c.ServiceClusterIPRange,
		FlexVolumes: c.path(flexVolumes),
	})
}

// flexVolumes is a directory of the data directory.
const flexVolumes = "flexvolume"

func (s *controlPlane) runFirstObjects(ctx context.Context, ready func()) error {
	return s.first.run(ctx, s, ready)
}

// url is the secure listener at an address of this machine.
func (s *controlPlane) url() string { return "https://" + localAddress(s.secure) }

// clients are those of the parts in this process.
func (s *controlPlane) clients() loopback.Clients {
	return loopback.Clients{Server: s.loopback, Store: s.certs, Host: s.url(), Connect: !s.switches().On(deviations.Loopback)}
}

func (s *controlPlane) info() Info {
	info := Info{URL: s.url(), EtcdURL: s.etcdURL(), Kubeconfig: s.kubeconfigPath(), Took: time.Since(s.began), Slowest: s.trace.Slowest(slowest)}
	if s.plain != nil {
		info.InsecureURL = "http://" + localAddress(s.plain)
	}
	return info
}

// doing is called before each part is started or stopped.
func (s *controlPlane) doing(verb, part string) {
	s.log.Debugf("%s the %s", verb, part)
	if verb == lifecycle.Stopping && s.stopping.CompareAndSwap(false, true) {
		s.systemd.Stopping()
		logbridge.Stopping(true)
	}
	s.systemd.Status(verb + " the " + part)
}

// ready is called when the last part is; running ends when the stop begins.
func (s *controlPlane) ready(running context.Context) error {
	if err := s.publishKubeconfigs(); err != nil {
		return err
	}
	info := s.info()
	s.writeTrace()
	s.up.Store(true)
	s.settling.Go(func() { s.settle(running) })
	s.systemd.Ready(fmt.Sprintf("ready at %s, started in %v", info.URL, info.Took.Round(time.Millisecond)))
	if s.Config.Ready != nil {
		s.Config.Ready(info)
	}
	return nil
}

// slowest is how many parts the ready line names.
const slowest = 3

// stepsOf begins steps of a part in the trace of the start.
func (s *controlPlane) stepsOf(part string) func(step string) (done func()) {
	return func(step string) func() { return s.trace.Step(part, step) }
}

// writeFailedTrace writes the trace of a start that did not get to its end.
func (s *controlPlane) writeFailedTrace() {
	if !s.up.Load() {
		s.writeTrace()
	}
}

// writeTrace writes the trace of the start, if the user wants one.
func (s *controlPlane) writeTrace() {
	if s.StartupTrace == "" {
		return
	}
	if err := s.trace.Write(s.StartupTrace); err != nil {
		s.log.Errorf("--startup-trace: %v", err)
	}
}

// settle does what had to wait until everything is ready.
func (s *controlPlane) settle(running context.Context) {
	if s.SettleAfter > 0 {
		timer := time.NewTimer(s.SettleAfter)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-running.Done():
			return
		}
	}
	s.api.Load().Settle()
	if s.collector != nil && !s.stopping.Load() {
		s.collector.Settle()
	}
}

// healthy is what the watchdog asks.
func (s *controlPlane) healthy(ctx context.Context) error {
	if !s.up.Load() {
		return nil // a start has its own time limit
	}
	return s.api.Load().Healthy(ctx)
}

// lastErrorOf tells what a part that is not ready in time last said.
func (s *controlPlane) lastErrorOf(part string) func() error {
	return func() error {
		switch part {
		case apiserverPart:
			if api := s.api.Load(); api != nil {
				return api.NotReady()
			}
		case controllersPart:
			return s.controllers.LastError()
		case schedulerPart:
			return s.scheduler.LastError()
		case firstObjectsPart:
			return s.first.last()
		}
		return lifecycle.ErrNoAnswer
	}
}

func removeKubeconfig(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the last start's kubeconfig: %w", err)
	}
	return nil
}
