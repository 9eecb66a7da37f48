// Package bootstrap gives a new cluster the objects it is born with, and looks at
// every start whether they are still there.
//
// Upstream makes them one by one through the API, after the server has begun to
// serve: hooks, controllers, polls. [Config.Seed] makes the same ones from the same
// tables, sends them through the same defaulting, field management, strategies,
// codecs and encryption, and writes them to an empty store at once. [Config.ReplaceHooks]
// is for the two hooks of upstream's that wait a second before they look.
package bootstrap

import (
	"fmt"
	"net"

	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
)

// Options are what the rest of Karve decides. Up to AggregatedRoles it is
// what controllers would do first, for those that will run.
type Options struct {
	// ServiceAccounts gives every system namespace its default ServiceAccount.
	ServiceAccounts bool
	// ControllerAccounts are the ServiceAccounts that the controllers work as,
	// where those run that upstream runs by default.
	ControllerAccounts bool
	// RootCA, PEM, is published in every system namespace, unless it is empty.
	RootCA string
	// AggregatedRoles fills the ClusterRoles that are made up of others.
	AggregatedRoles bool

	// Repairing is called when a hook of upstream's is needed after all: with
	// its name, and why it was not possible to look, if it was not. Nil is no call.
	Repairing func(hook string, err error)
}

// Priorities ranks API groups and their versions: those that are served get an
// APIService.
type Priorities = map[schema.GroupVersion]controlplaneapiserver.APIServicePriority

// Config is what the objects of a new cluster depend on. Make it with [New].
type Config struct {
	Options
	namespaces []string
	service    service
	rbac       bool // is one of the authorizers
	kube       part
	extensions serverstorage.APIResourceConfigSource
	aggregator part
	priorities Priorities
}

// part is a server of the chain: where it keeps its objects, and which it serves.
type part struct {
	generic.RESTOptionsGetter
	serverstorage.APIResourceConfigSource
}

// service is the configuration of the kubernetes Service and its network.
type service struct {
	ranges         []string // CIDRs of different families; the first is the default
	primary        net.IPNet
	secondary      net.IPNet // no IP: there is none
	ip             net.IP
	port, nodePort int
	target         int // the API server's own port
}

// New reads the configuration of a chain, before it is built from it. The
// aggregator may be nil.
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
		// Without RBAC, upstream leaves its hook out, and the roles with it.
		rbac:       !shared.DisabledPostStartHooks.Has(rbacrest.PostStartHookName),
		extensions: extensions.GenericConfig.MergedResourceConfig,
		kube:       part{shared.RESTOptionsGetter, kube.ControlPlane.APIResourceConfigSource},
	}
	if kube.SecondaryServiceIPRange.IP != nil {
		c.service.ranges = append(c.service.ranges, kube.SecondaryServiceIPRange.String())
	}
	if aggregator != nil {
		c.priorities = priorities
		c.aggregator = part{aggregator.GenericConfig.RESTOptionsGetter, aggregator.GenericConfig.MergedResourceConfig}
	}
	return c, nil
}
