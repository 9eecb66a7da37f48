// Package bootstrap writes the first objects of a new cluster, and checks at every start
// that they still exist.
//
// Upstream makes them one by one through the API, after the server has begun to serve: in
// hooks, controllers and polls. [Config.Seed] makes the same objects from the same tables.
// It sends them through the same defaulting, field management, strategies, codecs and
// encryption, and writes them to an empty store in one transaction. [Config.ReplaceHooks]
// replaces the two hooks of upstream that wait a second before they look, and calls them again when they fail.
package bootstrap

import (
	"fmt"
	"net"

	"github.com/sirupsen/logrus"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"

	"github.com/karve-k8s/karve/bootstrap/kubeadm"
)

// Options are what the rest of Karve decides. The fields up to AggregatedRoles are what
// controllers would do first, if they will run.
type Options struct {
	// ServiceAccounts gives every system namespace its default ServiceAccount.
	ServiceAccounts bool
	// ControllerAccounts makes the ServiceAccounts of the controllers, if those run that
	// upstream runs by default.
	ControllerAccounts bool
	// RootCA, in PEM, is published in every system namespace, unless it is empty.
	RootCA string
	// AggregatedRoles fills the ClusterRoles that aggregate others.
	AggregatedRoles bool

	// Kubeadm is what the objects for `kubeadm join` depend on. If it is nil, there are none.
	Kubeadm *kubeadm.Config

	// Log says when one of upstream's hooks is needed after all. It may be nil.
	Log *logrus.Logger
	// Report returns a client that reports the requests of these hooks that are refused. It may be nil.
	Report func(*rest.Config) *rest.Config
}

// Priorities ranks API groups and their versions. Those that are served get an APIService.
type Priorities = map[schema.GroupVersion]controlplaneapiserver.APIServicePriority

// Config is what the first objects of a cluster depend on. Make it with [New].
type Config struct {
	Options
	namespaces []string
	service    service
	rbac       bool // whether it is one of the authorizers
	kube       part
	extensions serverstorage.APIResourceConfigSource
	aggregator part
	priorities Priorities
	informers  informers.SharedInformerFactory // of the API server
}

// part is a server of the chain: where it stores its objects, and which it serves.
type part struct {
	generic.RESTOptionsGetter
	serverstorage.APIResourceConfigSource
}

// service is the configuration of the kubernetes Service and its network.
type service struct {
	ranges         []string // CIDRs of different families; the first is the default
	primary        net.IPNet
	secondary      net.IPNet // without an IP: there is none
	ip             net.IP
	port, nodePort int
	target         int // the API server's own port
}

// New reads the configuration of a chain before the chain is built.
func New(o Options, extensions *apiextensionsserver.Config, kube *controlplane.Config, aggregator *aggregatorapiserver.Config, priorities Priorities) (*Config, error) {
	shared := kube.ControlPlane.Generic
	_, port, err := shared.SecureServing.HostPort()
	if err != nil {
		return nil, fmt.Errorf("find the API server's port: %w", err)
	}
	c := &Config{
		Options:    o,
		namespaces: kube.ControlPlane.SystemNamespaces,
		service: service{
			ranges: []string{kube.ServiceIPRange.String()}, ip: kube.APIServerServiceIP,
			primary: kube.ServiceIPRange, secondary: kube.SecondaryServiceIPRange,
			port: kube.APIServerServicePort, nodePort: kube.KubernetesServiceNodePort, target: port,
		},
		// Without RBAC, upstream leaves out its hook, and with it the roles.
		rbac:       !shared.DisabledPostStartHooks.Has(rbacrest.PostStartHookName),
		extensions: extensions.GenericConfig.MergedResourceConfig,
		informers:  kube.ControlPlane.VersionedInformers,
		kube:       part{shared.RESTOptionsGetter, kube.ControlPlane.APIResourceConfigSource},
		aggregator: part{aggregator.GenericConfig.RESTOptionsGetter, aggregator.GenericConfig.MergedResourceConfig},
		priorities: priorities,
	}
	if kube.SecondaryServiceIPRange.IP != nil {
		c.service.ranges = append(c.service.ranges, kube.SecondaryServiceIPRange.String())
	}
	return c, nil
}
