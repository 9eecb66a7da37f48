package apiserver

import (
	"fmt"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/informers"
	listersv1 "k8s.io/client-go/listers/core/v1"
	aggregatorserver "k8s.io/kube-aggregator/pkg/apiserver"
	kubeoptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/capabilities"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	kubeadmission "k8s.io/kubernetes/pkg/kubeapiserver/admission"
)

// configureKubeAPIServer is upstream's CreateKubeAPIServerConfig for --enable-aggregator-routing,
// with one difference: webhooks and APIServices may name Services of type ExternalName, as they may
// without that option.
func configureKubeAPIServer(o kubeoptions.CompletedOptions, generic *genericapiserver.Config, shared informers.SharedInformerFactory, storage *serverstorage.DefaultStorageFactory) (
	*controlplane.Config, aggregatorserver.ServiceResolver, []admission.PluginInitializer, error) {
	capabilities.Setup(o.AllowPrivileged, o.MaxConnectionBytesPerSec)
	initializers, err := (&kubeadmission.Config{}).New()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("failed to create admission plugin initializer: %w", err)
	}
	slices, err := proxy.NewEndpointSliceIndexerGetter(shared.Discovery().V1().EndpointSlices())
	if err != nil {
		return nil, nil, nil, fmt.Errorf("failed to create endpoint slice getter: %w", err)
	}
	resolver := followNames(shared.Core().V1().Services().Lister(), slices)
	if own, err := url.Parse(generic.LoopbackClientConfig.Host); err == nil {
		resolver = aggregatorserver.NewLoopbackServiceResolver(resolver, own)
	}
	controlPlane, admissions, err := controlplaneapiserver.CreateConfig(o.CompletedOptions, generic, shared, slices, storage, resolver, initializers)
	if err != nil {
		return nil, nil, nil, err
	}
	config := &controlplane.Config{
		ControlPlane: *controlPlane,
		Extra: controlplane.Extra{
			KubeletClientConfig: o.KubeletConfig,

			ServiceIPRange:          o.PrimaryServiceClusterIPRange,
			APIServerServiceIP:      o.APIServerServiceIP,
			SecondaryServiceIPRange: o.SecondaryServiceClusterIPRange,

			APIServerServicePort: 443,

			ServiceNodePortRange:      o.ServiceNodePortRange,
			KubernetesServiceNodePort: o.KubernetesServiceNodePort,

			EndpointReconcilerType: reconcilers.Type(o.EndpointReconcilerType),
			MasterCount:            o.MasterCount,
		},
	}
	if selector := config.ControlPlane.Generic.EgressSelector; selector != nil {
		config.Extra.KubeletClientConfig.Lookup = selector.Lookup
		dial, err := selector.Lookup(egressselector.Cluster.AsNetworkContext())
		if err != nil {
			return nil, nil, nil, err
		}
		transport := config.ControlPlane.ProxyTransport.Clone()
		transport.DialContext = dial
		config.ControlPlane.ProxyTransport = transport
	}
	return config, resolver, admissions, nil
}

// followNames returns a resolver that chooses an endpoint of a Service, or the name of an
// ExternalName Service.
func followNames(services listersv1.ServiceLister, slices proxy.EndpointSliceGetter) aggregatorserver.ServiceResolver {
	return &nameFollower{
		services:  services,
		endpoints: aggregatorserver.NewEndpointServiceResolver(services, slices),
		names:     aggregatorserver.NewClusterIPServiceResolver(services),
	}
}

type nameFollower struct {
	services         listersv1.ServiceLister
	endpoints, names aggregatorserver.ServiceResolver // upstream's
}

func (f *nameFollower) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	if service, err := f.services.Services(namespace).Get(name); err == nil && service.Spec.Type == corev1.ServiceTypeExternalName {
		return f.names.ResolveEndpoint(namespace, name, port)
	}
	return f.endpoints.ResolveEndpoint(namespace, name, port)
}
