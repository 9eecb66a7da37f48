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
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	"k8s.io/apiserver/pkg/util/webhook"
	aggregatorserver "k8s.io/kube-aggregator/pkg/apiserver"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"

	"github.com/karve-k8s/karve/server/apiserver/audit"
	"github.com/karve-k8s/karve/server/apiserver/egress"
	"github.com/karve-k8s/karve/server/apiserver/nodeissuer"
	"github.com/karve-k8s/karve/server/apiserver/openapi"
	"github.com/karve-k8s/karve/server/apiserver/replacements"
	"github.com/karve-k8s/karve/server/apiserver/stored"
	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/sharedinformers"
)

// configs are the configurations of the three servers, made from one generic configuration.
type configs struct {
	extensions *apiextensionsserver.Config
	kube       *controlplane.Config
	aggregator *aggregatorserver.Config

	informers sharedinformers.Lasting
	documents *openapi.Documents // nil: upstream's OpenAPI
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
	plugins := completed.Admission.GenericAdmission
	plugins.Decorators = append(admission.Decorators{admission.DecoratorFunc(egress.StayingPlugin)}, plugins.Decorators...)
	completed.InformerName = sharedinformers.Name(upstreamsName)
	defer func() {
		if err != nil {
			completed.InformerName.Release() // otherwise Run does
		}
	}()
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			end() // otherwise Run does
		}
	}()
	cfg, err := newConfigs(ctx, life, completed, c)
	if err != nil {
		return nil, err
	}
	s = &Server{config: c, informerName: completed.InformerName, delay: completed.GenericServerRunOptions.ShutdownDelayDuration,
		addressTypes: completed.KubeletConfig.PreferredAddressTypes,
		drained:      cfg.kube.ControlPlane.Generic.DrainedNotify(), informers: cfg.informers, endInformers: end,
		prepared: make(chan struct{})}
	if s.interruptible, err = c.bootstrap(ctx, cfg); err != nil {
		return nil, err
	}
	s.stored = stored.Begin(ctx, c.Log, cfg.kube.ControlPlane.Generic.RESTOptionsGetter)
	defer func(check *stored.Check) {
		if err != nil {
			check.Stop() // otherwise Run does
		}
	}(s.stored)
	first := &cfg.extensions.GenericConfig.Config
	if err := replacements.EndInformers(first, s.informers, end); err != nil {
		return nil, err
	}
	if c.Deviations.On(deviations.EarlyInformers) && first.AuditBackend == nil {
		s.early = replacements.NewEarly(life, end)
	}
	last := &cfg.aggregator.GenericConfig.Config // its handlers see a request first
	last.AddReadyzChecks(c.ReadyChecks...)
	growStacks(last)
	if c.Deviations.On(deviations.ListBuffer) {
		replacements.BufferLists(last)
	}
	if c.Deviations.On(deviations.Streams) {
		s.requests = replacements.EndStreams(last)
	}
	if c.Deviations.On(deviations.Namespaces) {
		s.writes = replacements.CountWrites(last)
	}
	s.count(last)
	s.buildPlainChains(last)
	if err := s.createChain(cfg); err != nil {
		return nil, err
	}
	close(s.prepared)
	return s, nil
}

// newConfigs is steps 4 to 6. It configures what the three servers share (handler chain,
// authentication, authorization, audit, admission, priority and fairness, informers, storage),
// and then each server.
//
// The node dialer is in the generic configuration because everything else captures it. It is the egress
// selector's dialer for the cluster, which Config.Dial wraps. The informers run until life ends, also those that admission
// starts for the parameters of a policy and would end with it.
func newConfigs(ctx, life context.Context, o options.CompletedOptions, own Config) (configs, error) {
	schemes := []*runtime.Scheme{legacyscheme.Scheme, apiextensionsserver.Scheme, aggregatorscheme.Scheme}
	generic, err := own.genericConfig(o.CompletedOptions, own.selector, o.InformerName, schemes)
	if err != nil {
		return configs{}, fmt.Errorf("build generic configuration: %w", err)
	}
	lasting := sharedinformers.Last(generic.Informers, life)
	generic.Informers = lasting
	audit.Bound(generic.Config, own.Log, o.Audit.WebhookOptions.ConfigFile, o.Traces.ConfigFile)
	if own.Identity != "" && generic.APIServerID != "" { // without the feature gate, there is no Lease
		generic.APIServerID = own.Identity
	}
	followServing(generic.SecureServing, o)
	// The three servers have copies of these, and append to them. Upstream's automatic reload leaves room behind the last one,
	// which they would share.
	generic.HealthzChecks, generic.ReadyzChecks = slices.Clip(generic.HealthzChecks), slices.Clip(generic.ReadyzChecks)
	c := configs{informers: lasting}
	if own.Deviations.On(deviations.OpenAPI) {
		c.documents = openapi.NewDocuments(generic.OpenAPIConfig, generic.OpenAPIV3Config, enabled(utilfeature.DefaultMutableFeatureGate))
	}
	if own.Deviations.On(deviations.ClientCertificates) {
		replacements.RememberClientCertificates(&generic.Config.Authentication)
	}
	defer generic.Wait()
	informers := generic.Informers
	if own.Deviations.On(deviations.EarlyInformers) {
		informers = replacements.PromptPolicies(ctx, informers)
	}
	kube, resolver, admission, err := app.CreateKubeAPIServerConfig(o, generic.Config, informers, generic.Storage)
	if err != nil {
		return configs{}, fmt.Errorf("configure kube-apiserver: %w", err)
	}
	c.kube = kube
	shared := &kube.ControlPlane
	if kubelets, own := &kube.Extra.KubeletClientConfig, generic.SecureServing; own != nil && kubelets.Lookup != nil {
		kubelets.Lookup = egress.ToKubelets(kubelets.Lookup, own.Listener.Addr())
	}
	followPublished(&shared.ClusterAuthenticationInfo, o)
	// The three servers make their admission plugins here. Everything later gets the informers as they are.
	defer func() {
		shared.VersionedInformers = generic.Informers
		if c.extensions != nil {
			c.extensions.GenericConfig.SharedInformerFactory = generic.Informers
		}
		if c.aggregator != nil {
			c.aggregator.GenericConfig.SharedInformerFactory = generic.Informers
		}
	}()
	if own.SingleServer && own.Deviations.On(deviations.SingleServer) {
		withoutPeers(shared)
	}
	webhookAuth := webhook.NewDefaultAuthenticationInfoResolverWrapper(
		shared.ProxyTransport, shared.Generic.EgressSelector, shared.Generic.LoopbackClientConfig, shared.Generic.TracerProvider)
	conversion := func(next webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
		return egress.StayAtHost(webhookAuth(next))
	}
	c.extensions, err = controlplaneapiserver.CreateAPIExtensionsConfig(
		*shared.Generic, shared.VersionedInformers, admission, o.CompletedOptions, o.MasterCount, resolver, conversion)
	if err != nil {
		return configs{}, fmt.Errorf("configure apiextensions-apiserver: %w", err)
	}
	if own.Deviations.On(deviations.OpenAPI) {
		openapi.DescribeOwnTypes(&c.extensions.GenericConfig.Config)
	}
	c.aggregator, err = controlplaneapiserver.CreateAggregatorConfig(
		*shared.Generic, o.CompletedOptions, shared.VersionedInformers, resolver, shared.ProxyTransport, shared.PeerProxy, admission)
	if err != nil {
		return configs{}, fmt.Errorf("configure kube-aggregator: %w", err)
	}
	if own.NodeIssuer != "" {
		shared.Generic.AdmissionControl = nodeissuer.Admission(shared.Generic.AdmissionControl, own.NodeIssuer)
		nodeissuer.Note(&c.aggregator.GenericConfig.Config)
	}
	return c, c.changeStorage(own, o.Etcd.WatchCacheSizes)
}

func (c Config) selector(users *egressselector.EgressSelector) (*egressselector.EgressSelector, error) {
	return egress.Selector(users, c.Dial)
}

// changeStorage changes how the servers store objects, for each deviation that is on.
func (c configs) changeStorage(own Config, watchCacheSizes []string) error {
	custom := &c.extensions.ExtraConfig.CRDRESTOptionsGetter
	servers := []*generic.RESTOptionsGetter{&c.kube.ControlPlane.Generic.RESTOptionsGetter, &c.extensions.GenericConfig.RESTOptionsGetter, custom,
		&c.aggregator.GenericConfig.RESTOptionsGetter}
	change := replacements.Storage{Switches: own.Deviations, SingleServer: own.SingleServer, WatchCacheSizes: watchCacheSizes}
	return change.Change(custom, servers...)
}

// createChain is steps 7 to 10. Each server delegates the requests that it does not know to
// the one created before it. The first server delegates to the not-found handler.
func (s *Server) createChain(c configs) error {
	notFound := notfoundhandler.New(c.kube.ControlPlane.Generic.Serializer, genericfilters.NoMuxAndDiscoveryIncompleteKey)
	extensions, err := c.extensions.Complete().New(genericapiserver.NewEmptyDelegateWithCustomHandler(notFound))
	if err != nil {
		return fmt.Errorf("create apiextensions-apiserver: %w", err)
	}
	definitions := extensions.Informers.Apiextensions().V1().CustomResourceDefinitions()
	// A kube-apiserver of a test suite is alone on a datastore of Karve's.
	alone := (s.config.SingleServer || s.config.Upstream != nil && s.config.Store != nil) && s.config.Deviations.On(deviations.SingleServer)
	if alone {
		if err := definitions.Informer().SetTransform(withoutPeersDelay); err != nil {
			return fmt.Errorf("create apiextensions-apiserver: %w", err)
		}
	}
	generic := c.kube.ControlPlane.Generic
	generic.SkipOpenAPIInstallation = c.documents != nil
	var kube *controlplane.Instance
	completed := c.kube.Complete()
	s.followAddress(c.kube)
	renewIdentity(alone, func() { kube, err = completed.New(extensions.GenericAPIServer) })
	if err != nil {
		return fmt.Errorf("create kube-apiserver: %w", err)
	}
	var extras []schema.GroupVersion
	if s.config.Group != nil {
		group := s.config.Group(s.informers)
		if err := kube.ControlPlane.GenericAPIServer.InstallAPIGroup(group); err != nil {
			return fmt.Errorf("install %s: %w", group.PrioritizedVersions[0].Group, err)
		}
		extras = group.PrioritizedVersions
	}
	if s.config.Deviations.On(deviations.Routes) {
		container := kube.ControlPlane.GenericAPIServer.Handler.GoRestfulContainer
		ours, upstreams := replacements.RememberRoutes(container)
		if s.config.Routers != nil {
			s.config.Routers(ours, upstreams, container.RegisteredWebServices())
		}
	}
	if c.documents != nil {
		c.documents.Serve(kube.ControlPlane.GenericAPIServer)
	}

	crdsServed := c.extensions.GenericConfig.MergedResourceConfig.ResourceEnabled(
		apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	aggregator, err := controlplaneapiserver.CreateAggregatorServer(
		c.aggregator.Complete(), kube.ControlPlane.GenericAPIServer, definitions, crdsServed, priorities(extras...))
	if err != nil {
		return fmt.Errorf("create kube-aggregator: %w", err)
	}
	servers := []*genericapiserver.GenericAPIServer{extensions.GenericAPIServer, kube.ControlPlane.GenericAPIServer, aggregator.GenericAPIServer}
	informers := []replacements.InformerFactory{s.informers, extensions.Informers, aggregator.APIRegistrationInformers}
	if err := s.use(servers, informers); err != nil {
		return err
	}
	var merged *openapi.Aggregated
	if c.documents != nil {
		if merged, err = openapi.Aggregate(aggregator, c.documents); err != nil {
			return fmt.Errorf("prepare OpenAPI: %w", err)
		}
	}
	prepared, err := aggregator.PrepareRun()
	if err != nil {
		return fmt.Errorf("prepare kube-aggregator: %w", err)
	}
	if merged != nil {
		merged.Serve(aggregator.GenericAPIServer.Handler.NonGoRestfulMux)
		generic.OpenAPIV3Config.Definitions = nil // each builder makes its own definitions
	}
	s.run = prepared.Run
	return nil
}

// use keeps what Karve needs of the server at the end of the chain, and lets the clients in
// this process call it.
func (s *Server) use(servers []*genericapiserver.GenericAPIServer, informers []replacements.InformerFactory) error {
	last := servers[len(servers)-1]
	s.unfiltered = func(w http.ResponseWriter, r *http.Request) {
		last.UnprotectedHandler().ServeHTTP(w, r)
	}
	if s.config.Page != nil {
		last.Handler.NonGoRestfulMux.UnlistedHandle(s.config.PagePath, s.config.Page)
		// Temporary, because browsers remember the other kind for whatever runs at this port later.
		last.Handler.NonGoRestfulMux.UnlistedHandle(strings.TrimSuffix(s.config.PagePath, "/"), http.RedirectHandler(s.config.PagePath, http.StatusTemporaryRedirect))
	}
	s.config.Loopback.Serve(openapi.WhenPrepared(s.prepared, last.Handler))
	if s.early == nil {
		return nil
	}
	s.early.Factories, s.early.Requests = informers, s.config.Loopback.Running
	go s.early.Fill(servers)
	return s.early.StopAfterHooks(last, servers[0], s.delay)
}
