package apiserver

import (
	"fmt"

	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/karve-k8s/karve/server/apiserver/openapi"
	"github.com/karve-k8s/karve/server/apiserver/replacements"
	"github.com/karve-k8s/karve/server/deviations"
)

// step is a point of [New] at which deviations change what has been built.
type step int

const (
	generalConfigured step = iota // the generic configuration
	serversConfigured             // the configuration of each server
	handlersWrapped               // the handlers of the last server, inside Karve's own
	serversCreated                // the servers
	runPrepared                   // the servers, ready to run
)

// wraps are the deviations of this package that change the chain, in the order in which they do. None is a guard: those are in
// chain.go and genericconfig.go, whatever is switched off.
//
// The others: chain.go writes the first objects (bootstrap), genericconfig.go has the rest of loopback, and genericconfig, and singleserver changes an
// option and a variable of upstream's, too.
var wraps = []struct {
	of   *deviations.Deviation
	at   step
	wrap func(*chain) error
}{
	{of: deviations.OpenAPI, at: generalConfigured, wrap: func(b *chain) error {
		b.documents = openapi.NewDocuments(b.generic.OpenAPIConfig, b.generic.OpenAPIV3Config, enabled(utilfeature.DefaultMutableFeatureGate))
		return nil
	}},
	{of: deviations.ClientCertificates, at: generalConfigured, wrap: func(b *chain) error {
		replacements.RememberClientCertificates(&b.generic.Config.Authentication)
		return nil
	}},
	{of: deviations.Loopback, at: generalConfigured, wrap: func(b *chain) error {
		b.admission = replacements.PromptPolicies(b.ctx, b.informers)
		return nil
	}},

	{of: deviations.SingleServer, at: serversConfigured, wrap: func(b *chain) error {
		if b.config.SingleServer {
			withoutPeers(&b.kube.ControlPlane)
		}
		return nil
	}},
	{of: deviations.OpenAPI, at: serversConfigured, wrap: func(b *chain) error {
		openapi.DescribeOwnTypes(&b.extensions.GenericConfig.Config)
		b.kube.ControlPlane.Generic.SkipOpenAPIInstallation = true
		return nil
	}},
	{of: deviations.Uncached, at: serversConfigured, wrap: func(b *chain) error {
		return replacements.WithoutCaches(b.config.SingleServer, b.options.Etcd.WatchCacheSizes, b.storage()...)
	}},
	{of: deviations.AlignedClock, at: serversConfigured, wrap: func(b *chain) error {
		replacements.AlignCaches(b.storage()...)
		return nil
	}},
	{of: deviations.AwaitStorage, at: serversConfigured, wrap: func(b *chain) error {
		replacements.AwaitCaches(&b.extensions.ExtraConfig.CRDRESTOptionsGetter)
		return nil
	}},

	{of: deviations.Loopback, at: handlersWrapped, wrap: func(b *chain) error {
		if b.extensions.GenericConfig.AuditBackend == nil {
			b.early = replacements.NewEarly(b.life, b.endInformers)
		}
		return nil
	}},
	{of: deviations.ListBuffer, at: handlersWrapped, wrap: func(b *chain) error {
		replacements.BufferLists(&b.aggregator.GenericConfig.Config)
		return nil
	}},
	{of: deviations.Streams, at: handlersWrapped, wrap: func(b *chain) error {
		b.requests = replacements.EndStreams(&b.aggregator.GenericConfig.Config)
		return nil
	}},
	{of: deviations.Namespaces, at: handlersWrapped, wrap: func(b *chain) error {
		b.writes = replacements.CountWrites(&b.aggregator.GenericConfig.Config)
		return nil
	}},

	{of: deviations.SingleServer, at: serversCreated, wrap: func(b *chain) error {
		if !b.alone() {
			return nil
		}
		return b.extensionsServer.Informers.Apiextensions().V1().CustomResourceDefinitions().Informer().SetTransform(withoutPeersDelay)
	}},
	{of: deviations.Routes, at: serversCreated, wrap: func(b *chain) error {
		container := b.kubeServer.ControlPlane.GenericAPIServer.Handler.GoRestfulContainer
		ours, upstreams := replacements.RememberRoutes(container)
		if b.config.Routers != nil {
			b.config.Routers(ours, upstreams, container.RegisteredWebServices())
		}
		return nil
	}},
	{of: deviations.OpenAPI, at: serversCreated, wrap: func(b *chain) (err error) {
		b.documents.Serve(b.kubeServer.ControlPlane.GenericAPIServer)
		b.merged, err = openapi.Aggregate(b.aggregatorServer, b.documents)
		return err
	}},
	{of: deviations.Loopback, at: serversCreated, wrap: func(b *chain) error { return b.fillEarly() }},

	{of: deviations.OpenAPI, at: runPrepared, wrap: func(b *chain) error {
		b.merged.Serve(b.aggregatorServer.GenericAPIServer.Handler.NonGoRestfulMux)
		b.kube.ControlPlane.Generic.OpenAPIV3Config.Definitions = nil // each builder makes its own definitions
		return nil
	}},
}

// wrap lets the deviations that are on change what a step has built.
func (b *chain) wrap(at step) error {
	for _, w := range wraps {
		if w.at != at || !b.config.Deviations.On(w.of) {
			continue
		}
		if err := w.wrap(b); err != nil {
			return fmt.Errorf("%s: %w", w.of.Name, err)
		}
	}
	return nil
}

// storage returns how the servers store objects.
func (b *chain) storage() []*generic.RESTOptionsGetter {
	return []*generic.RESTOptionsGetter{&b.kube.ControlPlane.Generic.RESTOptionsGetter, &b.extensions.GenericConfig.RESTOptionsGetter,
		&b.extensions.ExtraConfig.CRDRESTOptionsGetter, &b.aggregator.GenericConfig.RESTOptionsGetter}
}

// alone reports whether the deviation singleserver may rely on it that no other API server serves the objects. A kube-apiserver of a
// test suite is alone on a datastore of Karve's.
func (b *chain) alone() bool {
	c := b.config
	return (c.SingleServer || c.Upstream != nil && c.Store != nil) && c.Deviations.On(deviations.SingleServer)
}

// fillEarly starts the informers of the three servers while the chain is being prepared to run.
func (b *chain) fillEarly() error {
	if b.early == nil {
		return nil
	}
	last := b.aggregatorServer.GenericAPIServer
	b.early.Factories = []replacements.InformerFactory{b.informers, b.extensionsServer.Informers, b.aggregatorServer.APIRegistrationInformers}
	b.early.Requests = b.config.Loopback.Running
	go b.early.Fill([]*genericapiserver.GenericAPIServer{b.extensionsServer.GenericAPIServer, b.kubeServer.ControlPlane.GenericAPIServer, last})
	return b.early.StopAfterHooks(last, b.extensionsServer.GenericAPIServer, b.delay)
}
