package apiserver

import (
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver/load"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericfeatures "k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	utilopenapi "k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/transport"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	"k8s.io/kubernetes/pkg/controlplane/apiserver/options"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"k8s.io/kubernetes/pkg/kubeapiserver"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"

	"github.com/karve-k8s/karve/server/apiserver/egress"
	"github.com/karve-k8s/karve/server/apiserver/openapi"
	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/loopback"
	"github.com/karve-k8s/karve/server/sharedinformers"
)

// sharedConfig is the configuration that the three servers share, while it is being built.
type sharedConfig struct {
	options.CompletedOptions
	*genericapiserver.Config
	client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	Storage   *serverstorage.DefaultStorageFactory
	described chan struct{} // closed once OpenAPIV3Config.Definitions are there
}

// Wait returns when everything in the configuration is set.
func (c *sharedConfig) Wait() { <-c.described }

// genericConfig returns the configuration that the three servers share. It is upstream's BuildGenericConfig, whose steps
// are all exported, with these differences. Unless selector is nil, everything gets the egress selector that it returns for the user's
// (which may be nil), and webhooks in kubeconfigs connect to nothing else: no switch makes them. The server's own clients call the
// handler through own.Loopback, and get another certificate; upstream generates two RSA keys for it, which is a third of
// a start's CPU time. A test compares the results.
//
// Call Wait before a server is created from the result, because the definitions of types are
// collected concurrently.
//
// The order of the steps matters. The client is made from the serving options, storage reads
// the egress selector, and authentication reads nearly everything before it.
func (own Config) genericConfig(o options.CompletedOptions, selector egress.Choice, name *cache.InformerName, schemes []*runtime.Scheme) (*sharedConfig, error) {
	codecs := legacyscheme.Codecs
	if utilfeature.DefaultFeatureGate.Enabled(genericfeatures.CBORServingAndStorage) {
		codecs = serializer.NewCodecFactory(legacyscheme.Scheme, serializer.WithSerializer(cbor.NewSerializerInfo))
	}
	c := &sharedConfig{CompletedOptions: o, Config: genericapiserver.NewConfig(codecs), described: make(chan struct{})}
	c.Config.Flagz = o.Flagz
	c.MergedResourceConfig = controlplane.DefaultAPIResourceConfigSource()
	quick := own.Deviations.On(deviations.GenericConfig)
	for _, apply := range []func() error{
		func() error { return o.GenericServerRunOptions.ApplyTo(c.Config) },
		func() error {
			if quick {
				return serveWithLoopback(o.SecureServing.SecureServingOptions, c.Config)
			}
			return o.SecureServing.ApplyToConfig(c.Config)
		},
		func() error { return c.useLoopback(own, name) },
		func() error { return o.Features.ApplyTo(c.Config, c.client, c.Informers) },
		func() error { return o.APIEnablement.ApplyTo(c.Config, c.MergedResourceConfig, legacyscheme.Scheme) },
		func() (err error) {
			if err = o.EgressSelector.ApplyTo(c.Config); err == nil && selector != nil {
				c.Config.EgressSelector, err = selector(c.Config.EgressSelector)
			}
			return err
		},
		func() error { return o.Traces.ApplyTo(c.Config.EgressSelector, c.Config) },
		func() error { c.describe(schemes, quick); return nil },
		c.store,
		c.authenticate,
		c.authorize,
		c.audit,
	} {
		if err := apply(); err != nil {
			return nil, err
		}
	}
	c.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	return c, nil
}

// useLoopback makes the API server's own clients call its handler through own instead of
// connecting to its listener. Their identity does not change: they have a token that only they
// know. Requests that take over a connection still get one.
func (c *sharedConfig) useLoopback(own Config, name *cache.InformerName) (err error) {
	config := c.LoopbackClientConfig
	config.ContentType = runtime.ContentTypeProtobuf
	config.DisableCompression = true
	if own.Deviations.On(deviations.Loopback) {
		config.WrapTransport = transport.Wrappers(func(connecting http.RoundTripper) http.RoundTripper {
			return &loopback.Transport{Server: own.Loopback, Upgrade: connecting}
		}, config.WrapTransport)
	}
	loopback.As("kube-apiserver", config)
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	c.Informers = informers.NewSharedInformerFactoryWithOptions(c.client, sharedinformers.Resync,
		informers.WithTransform(dropFieldOwners), informers.WithInformerName(name))
	return nil
}

// dropFieldOwners removes from cached objects what nothing in the server reads.
func dropFieldOwners(object any) (any, error) {
	if m, err := meta.Accessor(object); err == nil && m.GetManagedFields() != nil {
		m.SetManagedFields(nil)
	}
	return object, nil
}

// describe configures OpenAPI, and which requests are long-running.
func (c *sharedConfig) describe(schemes []*runtime.Scheme, concurrently bool) {
	definitions := utilopenapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generatedopenapi.GetOpenAPIDefinitions)
	namer := openapinamer.NewDefinitionNamer(schemes...)
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	if concurrently {
		none := func(common.ReferenceCallback) map[string]common.OpenAPIDefinition { return nil }
		v3 := genericapiserver.DefaultOpenAPIV3Config(none, namer)
		v3.GetDefinitions = definitions
		c.OpenAPIV3Config = v3
		go func() {
			v3.Definitions = openapi.DefinitionsV3(definitions, namer.GetDefinitionName)
			close(c.described)
		}()
	} else {
		c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
		close(c.described)
	}
	c.OpenAPIConfig.Info.Title, c.OpenAPIV3Config.Info.Title = "Kubernetes", "Kubernetes"
	c.LongRunningFunc = filters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"), sets.NewString("attach", "exec", "proxy", "log", "portforward"))
}

func (c *sharedConfig) store() (err error) {
	dial := &c.Etcd.StorageConfig.Transport
	if c.Config.EgressSelector != nil {
		dial.EgressLookup = c.Config.EgressSelector.Lookup
	}
	dial.TracerProvider = c.TracerProvider
	factory := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(c.EffectiveVersion)
	factory.APIResourceConfig = c.MergedResourceConfig
	factory.DefaultResourceEncoding.SetEffectiveVersion(c.EffectiveVersion)
	if c.Storage, err = factory.Complete(c.Etcd).New(); err != nil {
		return err
	}
	c.Storage.StorageConfig.StorageObjectCountTracker = c.StorageObjectCountTracker
	return c.Etcd.ApplyWithStorageFactoryTo(c.Storage, c.Config)
}

// authenticate configures authentication. What it starts runs until the last request has
// ended; so does what authorize starts.
func (c *sharedConfig) authenticate() error {
	selector, o := c.Config.EgressSelector, c.CompletedOptions.Authentication
	// Issuers of tokens may have the same dialer, and name further hosts themselves.
	if o.WebHook != nil && o.AuthenticationConfigFile == "" {
		var err error
		if selector, err = egress.Towards(selector, named(o.WebHook.ConfigFile)); err != nil {
			return err
		}
	}
	return c.CompletedOptions.Authentication.ApplyTo(wait.ContextForChannel(c.DrainedNotify()), &c.Config.Authentication,
		c.Config.SecureServing, selector, c.OpenAPIConfig, c.OpenAPIV3Config, c.client, c.Informers, c.APIServerID)
}

func (c *sharedConfig) authorize() error {
	selector, err := egress.Towards(c.Config.EgressSelector, c.authorizationWebhooks)
	if err != nil {
		return err
	}
	authorizer, rules, rbac, err := controlplaneapiserver.BuildAuthorizer(wait.ContextForChannel(c.DrainedNotify()),
		c.CompletedOptions, selector, c.APIServerID, c.Informers)
	if err != nil {
		return fmt.Errorf("invalid authorization config: %w", err)
	}
	c.Config.Authorization.Authorizer, c.RuleResolver = authorizer, rules
	if c.CompletedOptions.Authorization != nil && !rbac {
		c.DisabledPostStartHooks.Insert(rbacrest.PostStartHookName)
	}
	return nil
}

// authorizationWebhooks returns the kubeconfigs of webhooks for authorization.
func (c *sharedConfig) authorizationWebhooks() ([]string, error) {
	o := c.CompletedOptions.Authorization
	if o == nil {
		return nil, nil
	}
	if o.AuthorizationConfigurationFile == "" {
		return named(o.WebhookConfigFile)()
	}
	config, err := load.LoadFromFile(o.AuthorizationConfigurationFile)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, a := range config.Authorizers {
		if a.Webhook != nil && a.Webhook.ConnectionInfo.KubeConfigFile != nil {
			files = append(files, *a.Webhook.ConnectionInfo.KubeConfigFile)
		}
	}
	return files, nil
}

// audit gives the webhook a selector of its own.
func (c *sharedConfig) audit() (err error) {
	all := c.Config.EgressSelector
	defer func() { c.Config.EgressSelector = all }()
	if c.Config.EgressSelector, err = egress.Towards(all, named(c.CompletedOptions.Audit.WebhookOptions.ConfigFile)); err != nil {
		return err
	}
	return c.CompletedOptions.Audit.ApplyTo(c.Config)
}

// named returns the file, if there is one.
func named(file string) func() ([]string, error) {
	return func() ([]string, error) {
		if file == "" {
			return nil, nil
		}
		return []string{file}, nil
	}
}
