// Package egress decides what the API server connects to for its users, and for whoever answers
// them. A webhook's configuration, a Service, a Node or an issuer of tokens names an address, and a
// webhook's answer may name another one.
package egress

import (
	"fmt"
	"net"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"

	"github.com/karve-k8s/karve/internal/ownports"
)

// DialFunc is the signature of net.Dialer's DialContext.
type DialFunc = ownports.DialFunc

// Choice returns the egress selector to use instead of the user's, which may be nil.
type Choice func(users *egressselector.EgressSelector) (*egressselector.EgressSelector, error)

// Selector returns an egress selector whose dialers are those of selected, which may be nil, or
// upstream's. They refuse the server's own ports without authentication (package ownports), and cluster,
// if it is not nil, wraps the dialer of connections to the cluster.
//
// That one is for kubelets (logs, exec, the node proxy), Pods and Services (their proxies), and webhooks and
// aggregated APIs that are Services. The dialer of the control plane is for webhooks that are URLs,
// authentication, authorization, audit and tracing. The datastore's stays as it is.
func Selector(selected *egressselector.EgressSelector, cluster func(DialFunc) DialFunc) (*egressselector.EgressSelector, error) {
	dialers, err := dialersOf(selected)
	if err != nil {
		return nil, err
	}
	for _, to := range []egressselector.EgressType{egressselector.ControlPlane, egressselector.Cluster} {
		dial := DialFunc(dialers[to])
		if dial == nil { // upstream's dialers have these limits
			dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
		}
		dial = ownports.Avoid(dial)
		if to == egressselector.Cluster && cluster != nil {
			dial = cluster(dial)
		}
		dialers[to] = dial
	}
	return egressselector.NewEgressSelectorWithMap(dialers), nil
}

// dialersOf returns the dialers of a selector, which may be nil.
func dialersOf(selector *egressselector.EgressSelector) (map[egressselector.EgressType]utilnet.DialFunc, error) {
	dialers := map[egressselector.EgressType]utilnet.DialFunc{}
	if selector == nil {
		return dialers, nil
	}
	for _, to := range []egressselector.EgressType{egressselector.ControlPlane, egressselector.Etcd, egressselector.Cluster} {
		dial, err := selector.Lookup(to.AsNetworkContext())
		if err != nil {
			return nil, fmt.Errorf("look up the dialer for %s: %w", to, err)
		}
		if dial != nil {
			dialers[to] = dial
		}
	}
	return dialers, nil
}
