package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	genericfilters "k8s.io/apiserver/pkg/endpoints/filters"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	aggregatorserver "k8s.io/kube-aggregator/pkg/apiserver"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"

	"github.com/karve-k8s/karve/bootstrap"
	"github.com/karve-k8s/karve/server/apiserver/audit"
	"github.com/karve-k8s/karve/server/apiserver/egress"
	"github.com/karve-k8s/karve/server/apiserver/nodeissuer"
	"github.com/karve-k8s/karve/server/apiserver/openapi"
	"github.com/karve-k8s/karve/server/apiserver/replacements"
	"github.com/karve-k8s/karve/server/apiserver/stored"
	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/sharedinformers"
)

// chain is a chain that is being built, with what each step has made. The table in wraps.go says what deviations change between
// the steps.
type chain struct {
	*Server
	ctx     context.Context // of New
	life    context.Context // of the informers
	options options.CompletedOptions

	generic    *sharedConfig
	admission  informers.SharedInformerFactory // that of generic, for the admission plugins of the three servers
	extensions *apiextensionsserver.Config
	kube       *controlplane.Config
	aggregator *aggregatorserver.Config
	documents  *openapi.Documents // nil: upstream's OpenAPI

	extensionsServer *apiextensionsserver.CustomResourceDefinitions
	kubeServer       *controlplane.Instance
	aggregatorServer *aggregatorserver.APIAggregator
	merged           *openapi.Aggregated // nil: upstream's OpenAPI
}

// New builds the chain, ready to run. The storage must be serving already, because building
// the configuration dials some of it. Until the server has stopped, the process must hold the
// feature gates of the configuration (see [Gates.Hold]). The error joins everything that
// upstream refuses about the options.
func New(ctx context.Context, c Config) (s *Server, err error) {
	var completed options.CompletedOptions
	if c.Upstream != nil {
		completed = *c.Upstream
	} else {
		prepareProcess()
		if completed, err = complete(ctx, c); err != nil {
			return nil, err
		}
	}
	completed.InformerName = sharedinformers.Name(upstreamsName)
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	b := &chain{ctx: ctx, life: life, options: completed, Server: &Server{
		config: c, informerName: completed.InformerName, endInformers: end, prepared: make(chan struct{}),
		delay: completed.GenericServerRunOptions.ShutdownDelayDuration, addressTypes: completed.KubeletConfig.PreferredAddressTypes,
	}}
	defer func() {
		if err != nil { // otherwise Run does
			b.stored.Stop()
			end()
			completed.InformerName.Release()
		}
	}()
	for _, step := range []func() error{b.buildGenericConfig, b.newConfig, b.bootstrap, b.wrapHandlers, b.createServerChain, b.prepareRun} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return b.Server, nil
}

// buildGenericConfig is step 3. It configures what the three servers share: handler chain, authentication, authorization, audit,
// admission, priority and fairness, informers, storage.
//
// The node dialer is in the generic configuration because everything else captures it. It is the egress
// selector's dialer for the cluster, which Config.Dial wraps. The informers run until life ends, also those that admission
// starts for the parameters of a policy and would end with it.
func (b *chain) buildGenericConfig() (err error) {
	own, o := b.config, b.options
	plugins := o.Admission.GenericAdmission
	plugins.Decorators = append(admission.Decorators{admission.DecoratorFunc(egress.StayingPlugin)}, plugins.Decorators...)
	schemes := []*runtime.Scheme{legacyscheme.Scheme, apiextensionsserver.Scheme, aggregatorscheme.Scheme}
	generic, err := own.genericConfig(o.CompletedOptions, own.selector, o.InformerName, schemes)
	if err != nil {
		return fmt.Errorf("build generic configuration: %w", err)
	}
	b.informers = sharedinformers.Last(generic.Informers, b.life)
	generic.Informers = b.informers
	b.generic, b.admission, b.drained = generic, b.informers, generic.DrainedNotify()
	audit.Bound(generic.Config, own.Log, o.Audit.WebhookOptions.ConfigFile, o.Traces.ConfigFile)
	if own.Identity != "" && generic.APIServerID != "" { // without the feature gate, there is no Lease
		generic.APIServerID = own.Identity
	}
	followServing(generic.SecureServing, o)
	// The three servers have copies of these, and append to them. Upstream's automatic reload leaves room behind the last one,
	// which they would share.
	generic.HealthzChecks, generic.ReadyzChecks = slices.Clip(generic.HealthzChecks), slices.Clip(generic.ReadyzChecks)
	return b.wrap(generalConfigured)
}

func (c Config) selector(users *egressselector.EgressSelector) (*egressselector.EgressSelector, error) {
	return egress.Selector(users, c.Dial)
}

// newConfig is steps 4 to 6, the configuration of each server, as upstream's NewConfig.
func (b *chain) newConfig() error {
	generic, o := b.generic, b.options
	defer generic.Wait()
	configure := app.CreateKubeAPIServerConfig
	if o.EnableAggregatorRouting && b.config.Deviations.On(deviations.ExternalNames) {
		configure = configureKubeAPIServer
	}
	kube, resolver, plugins, err := configure(o, generic.Config, b.admission, generic.Storage)
	if err != nil {
		return fmt.Errorf("configure kube-apiserver: %w", err)
	}
	b.kube = kube
	shared := &kube.ControlPlane
	if kubelets, own := &kube.Extra.KubeletClientConfig, generic.SecureServing; own != nil && kubelets.Lookup != nil {
		kubelets.Lookup = egress.ToKubelets(kubelets.Lookup, own.Listener.Addr())
	}
	followPublished(&shared.ClusterAuthenticationInfo, o)
	webhookAuth := webhook.NewDefaultAuthenticationInfoResolverWrapper(
		shared.ProxyTransport, shared.Generic.EgressSelector, shared.Generic.LoopbackClientConfig, shared.Generic.TracerProvider)
	conversion := func(next webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
		return egress.StayAtHost(webhookAuth(next))
	}
	b.extensions, err = controlplaneapiserver.CreateAPIExtensionsConfig(
		*shared.Generic, shared.VersionedInformers, plugins, o.CompletedOptions, o.MasterCount, resolver, conversion)
	if err != nil {
		return fmt.Errorf("configure apiextensions-apiserver: %w", err)
	}
	b.aggregator, err = controlplaneapiserver.CreateAggregatorConfig(
		*shared.Generic, o.CompletedOptions, shared.VersionedInformers, resolver, shared.ProxyTransport, shared.PeerProxy, plugins)
	if err != nil {
		return fmt.Errorf("configure kube-aggregator: %w", err)
	}
	// The three servers have made their admission plugins. Everything later gets the informers as they are.
	shared.VersionedInformers = generic.Informers
	b.extensions.GenericConfig.SharedInformerFactory = generic.Informers
	b.aggregator.GenericConfig.SharedInformerFactory = generic.Informers
	if issuer := b.config.NodeIssuer; issuer != "" {
		shared.Generic.AdmissionControl = nodeissuer.Admission(shared.Generic.AdmissionControl, issuer)
		nodeissuer.Note(&b.aggregator.GenericConfig.Config)
	}
	return b.wrap(serversConfigured)
}

// bootstrap writes the first objects of a new cluster. It runs after the configuration has
// been built, which decides how objects are stored, and before the servers are created, whose
// caches read them. A stop may interrupt the post-start hooks that it replaces.
func (b *chain) bootstrap() error {
	c := b.config
	seeds := c.Deviations.On(deviations.Bootstrap) // otherwise upstream's hooks and controllers create the first objects
	objects, err := bootstrap.New(c.Bootstrap, b.extensions, b.kube, b.aggregator, priorities())
	if err != nil {
		return err
	}
	if seeds && c.Store != nil {
		if _, err := objects.Seed(b.ctx, stored.Recorded(c.Store)); err != nil {
			return err
		}
	}
	b.interruptible, err = objects.ReplaceHooks(seeds, &b.extensions.GenericConfig.Config, b.kube.ControlPlane.Generic, &b.aggregator.GenericConfig.Config)
	return err
}

// wrapHandlers puts Karve's own handlers around the last server's, which see a request first.
func (b *chain) wrapHandlers() error {
	b.stored = stored.Begin(b.ctx, b.config.Log, b.kube.ControlPlane.Generic.RESTOptionsGetter)
	if err := replacements.EndInformers(&b.extensions.GenericConfig.Config, b.informers, b.endInformers); err != nil {
		return err
	}
	last := &b.aggregator.GenericConfig.Config
	last.AddReadyzChecks(b.config.ReadyChecks...)
	growStacks(last)
	if err := b.wrap(handlersWrapped); err != nil {
		return err
	}
	b.count(last)
	b.buildPlainChains(last)
	return nil
}

// createServerChain is steps 7 to 9, as upstream's CreateServerChain. Each server delegates the requests that it does not know to
// the one created before it. The first server delegates to the not-found handler.
func (b *chain) createServerChain() error {
	notFound := notfoundhandler.New(b.kube.ControlPlane.Generic.Serializer, genericfilters.NoMuxAndDiscoveryIncompleteKey)
	extensions, err := b.extensions.Complete().New(genericapiserver.NewEmptyDelegateWithCustomHandler(notFound))
	if err != nil {
		return fmt.Errorf("create apiextensions-apiserver: %w", err)
	}
	b.extensionsServer = extensions
	completed := b.kube.Complete()
	b.followAddress(b.kube)
	renewIdentity(b.alone(), func() { b.kubeServer, err = completed.New(extensions.GenericAPIServer) })
	if err != nil {
		return fmt.Errorf("create kube-apiserver: %w", err)
	}
	kube := b.kubeServer.ControlPlane.GenericAPIServer
	var extras []schema.GroupVersion
	if b.config.Group != nil {
		group := b.config.Group(b.informers)
		if err := kube.InstallAPIGroup(group); err != nil {
			return fmt.Errorf("install %s: %w", group.PrioritizedVersions[0].Group, err)
		}
		extras = group.PrioritizedVersions
	}
	crdsServed := b.extensions.GenericConfig.MergedResourceConfig.ResourceEnabled(
		apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	b.aggregatorServer, err = controlplaneapiserver.CreateAggregatorServer(b.aggregator.Complete(), kube,
		extensions.Informers.Apiextensions().V1().CustomResourceDefinitions(), crdsServed, priorities(extras...))
	if err != nil {
		return fmt.Errorf("create kube-aggregator: %w", err)
	}
	if err := b.wrap(serversCreated); err != nil {
		return err
	}
	b.serveProcess() // last: the clients do not wait
	return nil
}

// serveProcess lets the clients in this process call the end of the chain.
func (b *chain) serveProcess() {
	last := b.aggregatorServer.GenericAPIServer
	b.unfiltered = func(w http.ResponseWriter, r *http.Request) {
		last.UnprotectedHandler().ServeHTTP(w, r)
	}
	if b.config.Page != nil {
		last.Handler.NonGoRestfulMux.UnlistedHandle(b.config.PagePath, b.config.Page)
		// Temporary, because browsers remember the other kind for whatever runs at this port later.
		last.Handler.NonGoRestfulMux.UnlistedHandle(strings.TrimSuffix(b.config.PagePath, "/"), http.RedirectHandler(b.config.PagePath, http.StatusTemporaryRedirect))
	}
	b.config.Loopback.Serve(openapi.WhenPrepared(b.prepared, last.Handler))
}

// prepareRun is step 10.
func (b *chain) prepareRun() error {
	prepared, err := b.aggregatorServer.PrepareRun()
	if err != nil {
		return fmt.Errorf("prepare kube-aggregator: %w", err)
	}
	b.run = prepared.Run
	if err := b.wrap(runPrepared); err != nil {
		return err
	}
	close(b.prepared)
	return nil
}
