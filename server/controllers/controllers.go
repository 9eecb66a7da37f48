// Package controllers runs kube-controller-manager's controllers in this process.
//
// Read [Controllers.Run] first. The options are in options.go, the informers that the
// controllers share with the API server in informers.go. Some controllers are not built by
// upstream's own constructors: token.go, unexported.go, and garbage.go and namespaces.go in package replacements, give the
// reasons. standstill.go there is for a process that was stopped for a while.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/controller-manager/pkg/clientbuilder"
	controllerhealthz "k8s.io/controller-manager/pkg/healthz"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	controllerconfig "k8s.io/kubernetes/cmd/kube-controller-manager/app/config"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/server/controllers/replacements"
	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/election"
	"github.com/karve-k8s/karve/server/lifecycle"
	"github.com/karve-k8s/karve/server/sharedinformers"
)

// Component is the name of upstream's program.
const Component = "kube-controller-manager"

// Options are what [New] needs.
type Options struct {
	// Upstream is what [Parse] returned. Run changes it.
	Upstream *Upstream
	// Connect returns what a running API server offers. Run calls it.
	Connect func() Connection
	// Election says when the controllers run. It is nil if no other server can use the datastore.
	Election *election.Election
	// Deviations are the places where Karve's own code runs instead of upstream's.
	Deviations deviations.Switches
	// NoPodRanges is called if no node gets a part of the default range of Pod addresses, because
	// this node has pods, which are outside. It may be nil.
	NoPodRanges func(node, pods, chosen string)
	// Blocked is called with what keeps the controllers from beginning, and returns it with a remedy. It
	// may be nil.
	Blocked func(error) error
}

// Connection is what the controllers need of a running API server.
type Connection struct {
	// Client has the identity of kube-controller-manager.
	Client *rest.Config
	// Anonymous has no identity. Each controller adds its own service account's.
	Anonymous *rest.Config
	// Certificates has the keys with which controllers sign.
	Certificates *certs.Store
	// Informers are the API server's.
	Informers sharedinformers.Lasting
	// Writes tells which writes a deleted namespace waits for. If it is nil, other API
	// servers may write to the datastore, and upstream's namespace controller runs.
	Writes *replacements.Writes
}

// Controllers are kube-controller-manager's controllers, with no port and, by default, no client-side rate
// limit.
type Controllers struct {
	options Options
	health  lifecycle.Health
	current atomic.Pointer[run]
}

// run is what is known of the controllers while they run once. With an election, they run once in
// each term.
type run struct {
	podsDecided chan struct{} // closed once the following is set
	assignsPods bool          // a controller gives nodes ranges of Pod addresses

	configured chan struct{} // closed once the following is set
	shared     informers.SharedInformerFactory

	started chan struct{} // closed once the following are set, and the informers started
	names   []string
	graph   *garbagecollector.GraphBuilder // nil without garbage collection
	forget  sync.Once                      // of ForgetAbsentOwners

	over chan struct{} // closed when the controllers have ended, and another run is the current one
}

// New returns controllers that have not started.
func New(o Options) *Controllers {
	if o.Blocked == nil {
		o.Blocked = func(err error) error { return err }
	}
	c := &Controllers{options: o}
	c.renew()
	return c
}

// renew forgets what the controllers were.
func (c *Controllers) renew() {
	ended := c.current.Swap(&run{configured: make(chan struct{}), started: make(chan struct{}), podsDecided: make(chan struct{}), over: make(chan struct{})})
	if ended != nil {
		close(ended.over)
	}
}

// Check is the line "controllers" of /readyz. A server that waits for its turn is ready.
func (c *Controllers) Check(r *http.Request) error { return c.health.Check(r) }

// LastError returns why the controllers are not ready, or nil if they are.
func (c *Controllers) LastError() error { return c.health.LastError() }

// Informers waits until the controllers' informers are configured, and returns them. They may be
// added to, but are started later: started waits for that, and returns an error if the controllers could not
// begin. With an election, they end with the term, so no other part may use them.
func (c *Controllers) Informers(ctx context.Context) (shared informers.SharedInformerFactory, started func(context.Context) error, err error) {
	now, err := c.await(ctx, func(r *run) <-chan struct{} { return r.configured })
	if err != nil {
		return nil, nil, err
	}
	return now.shared, func(ctx context.Context) error {
		select {
		case <-now.started:
			return nil
		case <-now.over:
			return errors.New("the controllers could not begin, and begin again")
		case <-ctx.Done():
			return ctx.Err()
		}
	}, nil
}

// await waits until a channel of the current run is closed.
func (c *Controllers) await(ctx context.Context, which func(*run) <-chan struct{}) (*run, error) {
	for {
		now := c.current.Load()
		select {
		case <-which(now):
			return now, nil
		case <-now.over: // there is another one
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// running returns the controllers that have started, or nil.
func (c *Controllers) running() *run {
	now := c.current.Load()
	select {
	case <-now.started:
		return now
	default:
		return nil
	}
}

// Names returns the names of the controllers that run. Before the start, there are none.
func (c *Controllers) Names() []string {
	if now := c.running(); now != nil {
		return now.names
	}
	return nil
}

// Run starts the controllers, calls ready, and returns when ctx has ended and they have
// stopped. With an election, the controllers run while this server leads. Then it is ready as soon
// as one leads. If Run fails, it may be called again.
func (c *Controllers) Run(ctx context.Context, ready func()) error {
	defer c.health.Set(errors.New("stopped"))
	connection := c.options.Connect()
	if c.options.Election == nil {
		defer c.renew()
		return c.run(ctx, connection, nil, ready)
	}
	ready = sync.OnceFunc(ready)
	c.health.Set(errNoLeader)
	requests := lifecycle.NewRequests(c.SetBlocked)
	defer requests.End()
	standby := func() { requests.End(); c.health.Set(nil); ready() }
	return c.options.Election.Run(ctx, requests.Report(connection.Client), standby, func(leading context.Context, term *election.Term) error {
		requests.End()
		defer c.renew()
		defer c.health.Set(errNoLeader)
		defer replacements.ResetGauges()
		during := connection
		during.Client, during.Anonymous = term.Fence(connection.Client), term.Fence(connection.Anonymous)
		return c.run(leading, during, term, ready)
	})
}

var (
	errNoLeader = errors.New("no server has the lease yet")
	errBegins   = errors.New("the controllers begin")
)

// SetBlocked makes err the reason why the controllers are not ready. With nil, they begin.
func (c *Controllers) SetBlocked(err error) {
	if err = c.options.Blocked(err); err == nil {
		err = errBegins
	}
	c.health.Set(err)
}

// run runs the controllers once.
//
// It mirrors app.Run (cmd/kube-controller-manager/app/controllermanager.go), which serves
// the controllers' health on a port of its own.
func (c *Controllers) run(ctx context.Context, connection Connection, term *election.Term, ready func()) error {
	now := c.current.Load()
	requests := lifecycle.NewRequests(c.SetBlocked)
	defer requests.End()
	connection.Client = requests.Repeat(ctx, connection.Client)
	config, err := c.configure(ctx, connection)
	if err != nil {
		return ended(ctx, err)
	}
	config.EventBroadcaster.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: config.Client.CoreV1().Events("")})
	defer config.EventBroadcaster.Shutdown()

	root := clientbuilder.SimpleControllerClientBuilder{ClientConfig: config.Kubeconfig}
	anonymous := c.options.Upstream.Limit(connection.Anonymous)
	anonymous.ContentType = config.Kubeconfig.ContentType
	perController := replacements.FencedBuilder{Of: clientbuilder.NewDynamicClientBuilder(anonymous, config.Client.CoreV1(), metav1.NamespaceSystem),
		Fence: func(client *rest.Config) *rest.Config { return requests.Repeat(ctx, term.Fence(client)) }}
	shared, garbage, err := replacements.CreateContext(ctx, config, root, perController, c.options.Deviations.On(deviations.Garbage))
	if err != nil {
		return ended(ctx, fmt.Errorf("prepare controllers: %w", err))
	}
	defer shared.InformerFactory.Shutdown()
	if err := sharedinformers.Share(shared.InformerFactory, connection.Informers, c.options.Deviations, sharedWithAPIServer...); err != nil {
		return err
	}
	if c.options.Deviations.On(deviations.SharedInformers) {
		if err := shared.InformerFactory.Core().V1().ConfigMaps().Informer().SetTransform(forgetData); err != nil {
			return err
		}
	}
	now.shared = shared.InformerFactory
	close(now.configured)

	all, checks, err := build(ctx, shared, root, garbage, connection.Writes, c.options.Deviations)
	if ctx.Err() != nil {
		return ctx.Err() // constructors that list objects fail when the server stops
	}
	if err != nil {
		return err
	}
	requests.End()
	connection.Informers.StartWithContext(ctx)
	shared.InformerFactory.StartWithContext(ctx)
	shared.ObjectOrMetadataInformerFactory.Start(ctx.Done())
	close(shared.InformersStarted)
	for _, controller := range all {
		now.names = append(now.names, controller.Name())
	}
	now.graph = shared.GraphBuilder
	close(now.started)
	c.health.Set(nil, checks...)
	ready()
	if limit := config.ControllerShutdownTimeout; !app.RunControllers(ctx, shared, all, app.ControllerStartJitter, limit) {
		return fmt.Errorf("%w: controllers still ran %v after they were told to stop", election.ErrRuns, limit)
	}
	return nil
}

// ended returns the error of a context that has ended, because err is then a consequence. Otherwise
// it returns err.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// configure turns the options into upstream's configuration, with clients of connection.
func (c *Controllers) configure(ctx context.Context, connection Connection) (*controllerconfig.CompletedConfig, error) {
	o := c.options.Upstream
	o.UseCertificates(connection.Certificates)
	client := connection.Client
	o.Master = client.Host // otherwise upstream looks for the service account of a Pod
	config, err := o.Config(ctx, app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases())
	if err != nil {
		return nil, lifecycle.Final(fmt.Errorf("configure controllers: %w", err))
	}
	client.ContentType = o.Generic.ClientConnection.ContentType
	config.Kubeconfig = client
	config.Client, err = kubernetes.NewForConfig(rest.AddUserAgent(client, Component))
	if err != nil {
		return nil, fmt.Errorf("create client for controllers: %w", err)
	}
	if err := c.keepPodRanges(ctx, config); err != nil {
		return nil, err
	}
	return config.Complete(), nil
}

// build makes all controllers that are enabled, and a health check for each but the token
// controller, as upstream does.
func build(ctx context.Context, shared app.ControllerContext, root clientbuilder.ControllerClientBuilder, garbage *replacements.Garbage, writes *replacements.Writes, switches deviations.Switches) ([]app.Controller, []lifecycle.Checker, error) {
	// Upstream does not export the constructor of the token controller, which it builds
	// before all others.
	tokens, err := newTokenController(ctx, shared, root)
	if err != nil {
		return nil, nil, err
	}
	heart := replacements.NewHeart(time.Now)
	go heart.Run(ctx)
	heart.Renew(shared.InformerFactory)
	descriptors := app.NewControllerDescriptors()
	delete(descriptors, names.ServiceAccountTokenController)
	own := map[string]func(context.Context, app.ControllerContext) (app.Controller, error){
		names.CertificateSigningRequestSigningController: newSigners,
		names.PersistentVolumeAttachDetachController:     newAttachDetach,
	}
	if garbage != nil {
		own[names.GarbageCollectorController] = func(ctx context.Context, shared app.ControllerContext) (app.Controller, error) {
			return garbage.Collector(ctx, shared)
		}
	}
	if writes != nil && switches.On(deviations.Namespaces) {
		own[names.NamespaceController] = func(ctx context.Context, shared app.ControllerContext) (app.Controller, error) {
			o := shared.ComponentConfig.NamespaceController
			return replacements.NewNamespaceController(ctx, shared.ClientBuilder, shared.InformerFactory.Core().V1().Namespaces().Informer(), writes, int(o.ConcurrentNamespaceSyncs), o.NamespaceSyncPeriod.Duration)
		}
	}
	for name := range own {
		if shared.IsControllerEnabled(descriptors[name]) {
			delete(descriptors, name)
		} else {
			delete(own, name)
		}
	}
	var checks healthChecks
	all, err := app.BuildControllers(ctx, shared, descriptors, nil, &checks)
	if err != nil {
		return nil, nil, fmt.Errorf("build controllers: %w", err)
	}
	all = append([]app.Controller{tokens}, all...)
	for name, construct := range own {
		controller, err := construct(ctx, shared)
		if err != nil {
			return nil, nil, err
		}
		if controller == nil {
			continue // one of its own options switches it off
		}
		all = append(all, controller)
		checks.AddHealthChecker(controllerhealthz.NamedPingChecker(name))
	}
	return all, checks, nil
}

// healthChecks collects the checks that app.BuildControllers adds.
type healthChecks []lifecycle.Checker

func (c *healthChecks) AddHealthChecker(checks ...healthz.HealthChecker) {
	for _, check := range checks {
		*c = append(*c, check)
	}
}
