// Package scheduler runs kube-scheduler in this process.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	componentconfig "k8s.io/component-base/config"
	"k8s.io/klog/v2"
	schedulerconfig "k8s.io/kubernetes/cmd/kube-scheduler/app/config"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/profile"

	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/election"
	"github.com/karve-k8s/karve/server/lifecycle"
	"github.com/karve-k8s/karve/server/sharedinformers"
)

// Component is the name of upstream's program.
const Component = "kube-scheduler"

// Options are what [New] needs.
type Options struct {
	// Upstream is what [Parse] returned. Run changes it.
	Upstream *Upstream
	// Connect returns what a running API server offers. Run calls it.
	Connect func() Connection
	// Deviations are the places where Karve's own code runs instead of upstream's.
	Deviations deviations.Switches
	// Identity is this server's in an election, and Log receives who leads.
	Identity string
	Log      *logrus.Logger
	// Blocked is called with what keeps the scheduler from beginning, and returns it with a remedy. It
	// may be nil.
	Blocked func(error) error
}

// Connection is what the scheduler needs of a running API server and of the controllers.
type Connection struct {
	// Client has the identity of kube-scheduler.
	Client *rest.Config
	// Informers are the API server's.
	Informers sharedinformers.Lasting
	// Controllers are the controllers. It is nil if there are none, or if they may stop before the
	// scheduler. A scheduler with leader election does not use them.
	Controllers Controllers
}

// Controllers are the controllers, as far as the scheduler shares their informers.
type Controllers interface {
	// Informers waits for the informers, which may not have started. started waits until they have, or
	// returns an error if they will not.
	Informers(context.Context) (shared informers.SharedInformerFactory, started func(context.Context) error, err error)
}

// Scheduler is kube-scheduler, with no port.
type Scheduler struct {
	options Options
	health  lifecycle.Health
}

// New returns a scheduler that has not started.
func New(o Options) *Scheduler {
	if o.Blocked == nil {
		o.Blocked = func(err error) error { return err }
	}
	return &Scheduler{options: o}
}

// Check is the line "scheduler" of /readyz. A server that waits for its turn is ready.
func (s *Scheduler) Check(r *http.Request) error { return s.health.Check(r) }

// LastError returns why the scheduler is not ready, or nil if it is.
func (s *Scheduler) LastError() error { return s.health.LastError() }

// Run starts the scheduler, calls ready once its caches are filled, and returns when ctx
// has ended and it has stopped. With leader election, the scheduler runs while this server leads.
// Then it is ready as soon as one leads. If Run fails, it may be called again.
func (s *Scheduler) Run(ctx context.Context, ready func()) error {
	defer s.health.Set(errors.New("stopped"))
	connection := s.options.Connect()
	if !s.options.Upstream.shared { // nothing else than an election needs to know upstream's configuration first
		return s.run(ctx, connection, ready)
	}
	settings, err := s.election(ctx, connection)
	if err != nil {
		return err
	}
	if !settings.LeaderElect {
		return s.run(ctx, connection, ready)
	}
	if err := election.Valid(s.options.Upstream.source(), settings); err != nil { // a configuration file may have them
		return lifecycle.Final(err)
	}
	// They run longer than a term, but those that only the scheduler uses cannot start a second time.
	connection.Controllers = nil
	candidate := election.New(election.Config{
		Identity: s.options.Identity, Settings: settings, Component: Component, Work: "runs the scheduler", Log: s.options.Log,
	})
	ready = sync.OnceFunc(ready)
	s.health.Set(errNoLeader)
	requests := lifecycle.NewRequests(s.SetBlocked)
	defer requests.End()
	standby := func() { requests.End(); s.health.Set(nil); ready() }
	return candidate.Run(ctx, requests.Report(connection.Client), standby, func(leading context.Context, term *election.Term) error {
		requests.End()
		defer s.health.Set(errNoLeader)
		defer resetGauges()
		during := connection
		during.Client = term.Fence(connection.Client)
		return s.run(leading, during, ready)
	})
}

var (
	errNoLeader = errors.New("no server has the lease yet")
	errBegins   = errors.New("the scheduler begins")
	errWaits    = errors.New("it waits for the controllers, whose informers it uses")
)

// SetBlocked makes err the reason why the scheduler is not ready. With nil, it begins.
func (s *Scheduler) SetBlocked(err error) {
	if err = s.options.Blocked(err); err == nil {
		err = errBegins
	}
	s.health.Set(err)
}

// election returns upstream's settings for leader election.
func (s *Scheduler) election(ctx context.Context, connection Connection) (componentconfig.LeaderElectionConfiguration, error) {
	c, err := s.component(ctx, connection)
	if err != nil {
		return componentconfig.LeaderElectionConfiguration{}, err
	}
	return c.ComponentConfig.LeaderElection, nil
}

// run runs the scheduler once.
//
// It mirrors app.Setup and app.Run (cmd/kube-scheduler/app/server.go), which read their
// client from a kubeconfig file and return an error after a clean stop.
func (s *Scheduler) run(ctx context.Context, connection Connection, ready func()) error {
	name := sharedinformers.Name(Component)
	defer name.Release()
	s.options.Upstream.InformerName = name
	requests := lifecycle.NewRequests(s.SetBlocked)
	defer requests.End()
	connection.Client = requests.Repeat(ctx, connection.Client)
	config, err := s.configure(ctx, connection)
	if err != nil {
		return err
	}
	if err := sharedinformers.Share(config.InformerFactory, connection.Informers, s.options.Deviations, sharedWithAPIServer...); err != nil {
		return err
	}
	started := func(context.Context) error { return nil }
	if connection.Controllers != nil {
		s.health.Set(errWaits)
		var theirs informers.SharedInformerFactory
		if theirs, started, err = connection.Controllers.Informers(ctx); err != nil {
			return err
		}
		if err := sharedinformers.Share(config.InformerFactory, theirs, s.options.Deviations, sharedWithControllers...); err != nil {
			return err
		}
	}

	completed := config.Complete()
	sched, err := build(ctx, completed)
	if err != nil {
		return fmt.Errorf("create scheduler: %w", err)
	}
	if connection.Controllers != nil {
		// Who starts a shared informer first also stops it, and the scheduler stops before the controllers.
		if err := started(ctx); err != nil {
			return err
		}
		s.health.Set(errBegins)
	}

	completed.EventBroadcaster.StartRecordingToSink(ctx.Done())
	defer completed.EventBroadcaster.Shutdown()
	connection.Informers.StartWithContext(ctx)
	completed.InformerFactory.StartWithContext(ctx)
	defer completed.InformerFactory.Shutdown()
	completed.DynInformerFactory.Start(ctx.Done())
	defer completed.DynInformerFactory.Shutdown()
	completed.InformerFactory.WaitForCacheSync(ctx.Done())
	completed.DynInformerFactory.WaitForCacheSync(ctx.Done())
	if err := waitForHandlers(ctx, sched); err != nil {
		return fmt.Errorf("fill the scheduler's caches: %w", err)
	}
	requests.End()
	s.health.Set(nil)
	ready()
	sched.Run(ctx)
	return nil
}

// component returns upstream's configuration without clients.
func (s *Scheduler) component(ctx context.Context, connection Connection) (*schedulerconfig.Config, error) {
	o := s.options.Upstream
	if err := o.complete(); err != nil {
		return nil, err
	}
	o.Master = connection.Client.Host // otherwise upstream looks for the service account of a Pod
	c := &schedulerconfig.Config{ComponentGlobalsRegistry: o.ComponentGlobalsRegistry}
	if err := o.ApplyTo(klog.FromContext(ctx), c); err != nil {
		return nil, lifecycle.Final(fmt.Errorf("configure scheduler: %w", err))
	}
	return c, nil
}

// configure turns the options into upstream's configuration, with clients of connection.
// Options.Config would make clients from a kubeconfig and ask the server with them.
func (s *Scheduler) configure(ctx context.Context, connection Connection) (*schedulerconfig.Config, error) {
	c, err := s.component(ctx, connection)
	if err != nil {
		return nil, err
	}
	client := connection.Client
	c.ComponentConfig.LeaderElection.LeaderElect = false
	client.ContentType, client.AcceptContentTypes = c.ComponentConfig.ClientConnection.ContentType, c.ComponentConfig.ClientConnection.AcceptContentTypes
	c.KubeConfig = client
	clients, err := kubernetes.NewForConfig(rest.AddUserAgent(client, "scheduler"))
	if err != nil {
		return nil, fmt.Errorf("create client for scheduler: %w", err)
	}
	dynamics, err := dynamic.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("create client for scheduler: %w", err)
	}
	c.Client = clients
	c.DynInformerFactory = dynamicinformer.NewFilteredDynamicSharedInformerFactory(dynamics, 0, "", nil)
	c.EventBroadcaster = events.NewEventBroadcasterAdapterWithContext(ctx, clients)
	c.InformerFactory = scheduler.NewInformerFactory(clients, 0, s.options.Upstream.InformerName)
	return c, nil
}

func build(ctx context.Context, c schedulerconfig.CompletedConfig) (*scheduler.Scheduler, error) {
	component := &c.ComponentConfig
	recorders := profile.RecorderFactory(func(name string) events.EventRecorderLogger {
		return c.EventBroadcaster.NewRecorder(name)
	})
	return scheduler.New(ctx, c.Client, c.InformerFactory, c.DynInformerFactory, recorders,
		scheduler.WithComponentConfigVersion(component.TypeMeta.APIVersion),
		scheduler.WithKubeConfig(c.KubeConfig),
		scheduler.WithProfiles(component.Profiles...),
		scheduler.WithPercentageOfNodesToScore(component.PercentageOfNodesToScore),
		scheduler.WithPodMaxBackoffSeconds(component.PodMaxBackoffSeconds),
		scheduler.WithPodInitialBackoffSeconds(component.PodInitialBackoffSeconds),
		scheduler.WithPodMaxInUnschedulablePodsDuration(c.PodMaxInUnschedulablePodsDuration),
		scheduler.WithExtenders(component.Extenders...),
		scheduler.WithParallelism(component.Parallelism),
	)
}

// handlersPoll is how often Run asks whether the scheduler's handlers have synced.
const handlersPoll = 5 * time.Millisecond

// waitForHandlers is the scheduler's WaitForHandlersSync with a shorter interval. Upstream's
// 100 ms are long for caches that are filled from memory.
func waitForHandlers(ctx context.Context, sched *scheduler.Scheduler) error {
	for {
		look, cancel := context.WithTimeout(ctx, handlersPoll)
		err := sched.WaitForHandlersSync(look)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}
