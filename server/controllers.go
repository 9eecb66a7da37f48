package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	genericcontrollers "k8s.io/controller-manager/app"
	"k8s.io/controller-manager/pkg/clientbuilder"
	controllerhealthz "k8s.io/controller-manager/pkg/healthz"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	signer "k8s.io/kubernetes/pkg/controller/certificates/signer/config"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	saController "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/server/flags"
	"github.com/karve-k8s/karve/server/loopback"
)

// extraControllers are off in upstream's default and on in Karve, as kubeadm
// has them: without the two, `kubeadm join` and bootstrap tokens do not work.
var extraControllers = []string{names.BootstrapSignerController, names.TokenCleanerController}

// flexVolumes is a directory of the data directory: see parseControllerOptions.
const flexVolumes = "flexvolume"

var ownedByControllers = map[string]string{
	"master":                    "the API server is this process",
	"kubeconfig":                "the API server is this process",
	"authentication-kubeconfig": "the controllers have no port of their own",
	"authorization-kubeconfig":  "the controllers have no port of their own",
	"secure-port":               "the controllers have no port of their own",
	"bind-address":              "the controllers have no port of their own",
	"leader-elect":              "there is one server",
	"cluster-cidr":              "use --cluster-cidr",
	"service-cluster-ip-range":  "use --service-cluster-ip-range",
	"feature-gates":             "use --feature-gates",
	"v":                         "use --log-level",
	"vmodule":                   "use --log-level",
	"logging-format":            "use --log-format",
}

// parseControllerOptions is kube-controller-manager's typed options with our
// defaults and the user's wishes, which the error joins where they are refused.
// store may be nil to validate before there are certificates.
func parseControllerOptions(c Config, store *certs.Store) (*options.KubeControllerManagerOptions, error) {
	o, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		return nil, fmt.Errorf("default controller options: %w", err)
	}
	// First, because making a flag gives its field the flag's default.
	sets := o.Flags(app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases())
	o.SecureServing.BindPort = 0
	o.Generic.LeaderElection.LeaderElect = false
	o.Generic.Controllers = append([]string{"*"}, extraControllers...)
	// Their requests are calls in this process and wait for little but its cores: fifty
	// and forty workers do no more than these.
	o.ResourceClaimController.ConcurrentSyncs = 10
	o.GarbageCollectorController.ConcurrentGCSyncs = 10
	// One identity per controller, each with no more than its own RBAC role.
	o.KubeCloudShared.UseServiceAccountCredentials = true
	o.KubeCloudShared.ClusterCIDR = c.ClusterCIDR
	o.KubeCloudShared.AllocateNodeCIDRs = c.ClusterCIDR != ""
	if first, second, ok := strings.Cut(c.ServiceClusterIPRange, ","); ok {
		o.NodeIPAMController.ServiceCIDR, o.NodeIPAMController.SecondaryServiceCIDR = first, second
	} else {
		o.NodeIPAMController.ServiceCIDR = c.ServiceClusterIPRange
	}
	// Upstream's default is in /usr, which is neither ours nor always writable.
	o.PersistentVolumeBinderController.VolumeConfiguration.FlexVolumePluginDir = c.path(flexVolumes)
	if store != nil {
		o.SAController.ServiceAccountKeyFile = store.KeyFile(certs.ServiceAccount)
		o.SAController.RootCAFile = store.CertFile(certs.ServerCA)
		signWith(o.CSRSigningController.CSRSigningControllerConfiguration, store)
	}

	problems := []error{flags.Apply("kube-controller-manager", "kube-controller-manager-arg", sets, ownedByControllers, c.ControllerManagerArgs)}
	for _, name := range c.DisableControllers {
		if err := checkController(name); err != nil {
			problems = append(problems, err)
			continue
		}
		// The first mention of a name counts.
		o.Generic.Controllers = append([]string{"-" + name}, o.Generic.Controllers...)
	}
	return o, errors.Join(problems...)
}

func validateControllerOptions(o *options.KubeControllerManagerOptions) error {
	if err := o.Validate(app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()); err != nil {
		return fmt.Errorf("--kube-controller-manager-arg: %w", err)
	}
	return nil
}

// runs tells whether a controller of that name is one of those o asks for.
func runs(o *options.KubeControllerManagerOptions, controller string) bool {
	var enabled []string
	for _, name := range o.Generic.Controllers { // the user's names may be aliases
		bare := strings.TrimPrefix(name, "-")
		if full, ok := app.ControllerAliases()[bare]; ok {
			name = strings.Replace(name, bare, full, 1)
		}
		enabled = append(enabled, name)
	}
	return genericcontrollers.IsControllerEnabled(controller, sets.NewString(), enabled)
}

// signWith hands the signers their authorities: who serves is signed by the CA
// that signs the API server, who asks by the one that the API server trusts for
// clients. An authority that a user supplied without its key signs nothing.
func signWith(c *signer.CSRSigningControllerConfiguration, store *certs.Store) {
	if file := store.SignerFile(); file != "" {
		client := signer.CSRSigningConfiguration{CertFile: file, KeyFile: store.KeyFile(certs.ClientCA)}
		c.KubeletClientSignerConfiguration, c.KubeAPIServerClientSignerConfiguration = client, client
	}
	if key := store.KeyFile(certs.ServerCA); exists(key) {
		server := signer.CSRSigningConfiguration{CertFile: store.CertFile(certs.ServerCA), KeyFile: key}
		c.KubeletServingSignerConfiguration, c.LegacyUnknownSignerConfiguration = server, server
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func checkController(name string) error {
	known := app.KnownControllers()
	for alias := range app.ControllerAliases() {
		known = append(known, alias)
	}
	for _, k := range known {
		if k == name {
			return nil
		}
	}
	proposal := ""
	if near := flags.Nearest(name, known); near != "" {
		proposal = fmt.Sprintf("; did you mean %q?", near)
	}
	return fmt.Errorf("--disable-controllers: there is no controller %q%s", name, proposal)
}

// controllers is kube-controller-manager as a part: all its controllers in this
// process, with no port, no lease and no client-side rate limit.
type controllers struct {
	health
	shared    informers.SharedInformerFactory
	collected informerfactory.InformerFactory // has custom resources too; nil without garbage collection
	mapper    meta.RESTMapper
	graph     *garbagecollector.GraphBuilder // nil without garbage collection
	writes    writesOf                       // set before the run, where storage is our own
	started   chan struct{}                  // closed once these are set and started
}

// informers waits until they are started.
func (c *controllers) informers(ctx context.Context) (informers.SharedInformerFactory, error) {
	select {
	case <-c.started:
		return c.shared, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// run mirrors app.Run (cmd/kube-controller-manager/app/controllermanager.go)
// without what a single process has no use for. It is not called because it
// keeps the controllers' health to a port of its own.
func (c *controllers) run(ctx context.Context, config Config, store *certs.Store, clients loopback.Clients, fromAPI informers.SharedInformerFactory, step func(string) func(), ready func()) error {
	defer c.set(nil, errors.New("stopped"))
	done := step("configuration")
	o, err := parseControllerOptions(config, store)
	if err != nil {
		return err
	}
	// Upstream would make it for everybody to read.
	if err := os.MkdirAll(config.path(flexVolumes), 0o700); err != nil {
		return fmt.Errorf("make directory for Flexvolume plugins: %w", err)
	}
	client := clients.Config(certs.ControllerManager)
	o.Master = client.Host // or upstream looks for a Pod's service account
	cfg, err := o.Config(ctx, app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases())
	if err != nil {
		return fmt.Errorf("configure controllers: %w", err)
	}
	client.ContentType = o.Generic.ClientConnection.ContentType
	cfg.Kubeconfig = client
	cfg.Client, err = kubernetes.NewForConfig(rest.AddUserAgent(client, "kube-controller-manager"))
	if err != nil {
		return fmt.Errorf("create client for controllers: %w", err)
	}
	cfg.EventBroadcaster.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: cfg.Client.CoreV1().Events("")})
	defer cfg.EventBroadcaster.Shutdown()

	completed := cfg.Complete()
	root := clientbuilder.SimpleControllerClientBuilder{ClientConfig: client}
	anonymous := clients.Anonymous()
	anonymous.ContentType = client.ContentType
	perController := clientbuilder.NewDynamicClientBuilder(anonymous, cfg.Client.CoreV1(), metav1.NamespaceSystem)
	shared, err := app.CreateControllerContext(ctx, completed, root, perController)
	if err != nil {
		return fmt.Errorf("prepare controllers: %w", err)
	}
	defer shared.InformerFactory.Shutdown()
	if err := shareInformers(shared.InformerFactory, fromAPI, withAPIServer...); err != nil {
		return err
	}
	if shared.GraphBuilder != nil {
		if err := relayInformers(shared.InformerFactory, ofControllers...); err != nil {
			return err
		}
	}

	done()
	done = step("controllers")

	// Upstream builds the token controller from a constructor it keeps to
	// itself, first of all; so it is taken out of the table and made here.
	tokens, err := newTokenController(ctx, shared, root)
	if err != nil {
		return err
	}
	descriptors := app.NewControllerDescriptors()
	delete(descriptors, names.ServiceAccountTokenController)
	ours := map[string]func(context.Context, app.ControllerContext) (app.Controller, error){
		names.GarbageCollectorController:                newGarbageController,
		names.ValidatingAdmissionPolicyStatusController: newPolicyStatusController,
	}
	if config.ownsStorage() {
		ours[names.NamespaceController] = func(ctx context.Context, shared app.ControllerContext) (app.Controller, error) {
			return newNamespaceController(ctx, shared, c.writes)
		}
	}
	for name := range ours {
		if shared.IsControllerEnabled(descriptors[name]) {
			delete(descriptors, name)
		} else {
			delete(ours, name)
		}
	}
	var checks healthChecks
	all, err := app.BuildControllers(ctx, shared, descriptors, nil, &checks)
	if err != nil {
		return fmt.Errorf("build controllers: %w", err)
	}
	all = append([]app.Controller{tokens}, all...)
	for name, build := range ours {
		controller, err := build(ctx, shared)
		if err != nil {
			return err
		}
		if controller == nil {
			continue // its own option switches it off
		}
		all = append(all, controller)
		checks.AddHealthChecker(controllerhealthz.NamedPingChecker(name))
	}

	done()
	shared.InformerFactory.StartWithContext(ctx)
	shared.ObjectOrMetadataInformerFactory.Start(ctx.Done())
	close(shared.InformersStarted)
	c.shared, c.mapper = shared.InformerFactory, shared.RESTMapper
	if shared.GraphBuilder != nil {
		c.collected, c.graph = shared.ObjectOrMetadataInformerFactory, shared.GraphBuilder
	}
	close(c.started)
	c.set(checks, nil)
	ready()
	if !app.RunControllers(ctx, shared, all, app.ControllerStartJitter, completed.ControllerShutdownTimeout) {
		return fmt.Errorf("controllers still ran %v after they were told to stop", completed.ControllerShutdownTimeout)
	}
	return nil
}

// tokenController fills Secrets of type kubernetes.io/service-account-token.
type tokenController struct {
	*saController.TokensController
	workers int
}

func newTokenController(ctx context.Context, shared app.ControllerContext, root clientbuilder.ControllerClientBuilder) (app.Controller, error) {
	config := shared.ComponentConfig.SAController
	key, err := keyutil.PrivateKeyFromFile(config.ServiceAccountKeyFile)
	if err != nil {
		return nil, fmt.Errorf("read service account key: %w", err)
	}
	roots, err := certutil.CertsFromFile(config.RootCAFile)
	if err != nil {
		return nil, fmt.Errorf("read root CA: %w", err)
	}
	rootCA, err := certutil.EncodeCertificates(roots...)
	if err != nil {
		return nil, fmt.Errorf("read root CA %s: %w", config.RootCAFile, err)
	}
	generator, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		return nil, fmt.Errorf("use service account key: %w", err)
	}
	client, err := root.Client("tokens-controller")
	if err != nil {
		return nil, fmt.Errorf("create client for token controller: %w", err)
	}
	core := shared.InformerFactory.Core().V1()
	controller, err := saController.NewTokensController(klog.FromContext(ctx), core.ServiceAccounts(), core.Secrets(), client,
		saController.TokensControllerOptions{TokenGenerator: generator, RootCA: rootCA})
	if err != nil {
		return nil, fmt.Errorf("create token controller: %w", err)
	}
	return tokenController{controller, int(config.ConcurrentSATokenSyncs)}, nil
}

func (tokenController) Name() string { return names.ServiceAccountTokenController }

func (t tokenController) Run(ctx context.Context) { t.TokensController.Run(ctx, t.workers) }

// healthChecks collects what app.BuildControllers registers.
type healthChecks []healthz.HealthChecker

func (c *healthChecks) AddHealthChecker(checks ...healthz.HealthChecker) { *c = append(*c, checks...) }

// health is a part's line in /readyz: not ready before it has started, then
// whatever its own checks say.
type health struct {
	mu     sync.Mutex
	checks []healthz.HealthChecker
	err    error
	up     bool
}

func (h *health) set(checks []healthz.HealthChecker, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks, h.err, h.up = checks, err, true
}

func (h *health) check(r *http.Request) error {
	h.mu.Lock()
	checks, err, up := h.checks, h.err, h.up
	h.mu.Unlock()
	if !up {
		return errors.New("not started yet")
	}
	errs := []error{err}
	for _, check := range checks {
		if err := check.Check(r); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", check.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// last is the reason a start that timed out names.
func (h *health) last() error {
	r, _ := http.NewRequest(http.MethodGet, "/", nil)
	return h.check(r)
}
