package apiserver

import (
	"context"
	"fmt"
	"net"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"
)

// DialFunc is the signature of net.Dialer's DialContext.
type DialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// dialThrough returns an egress selector whose dialer of connections to the cluster is wrapped, and
// whose other dialers are those of selector, which may be nil. Upstream then uses the dialer for
// everything that the API server connects to in the cluster: kubelets (logs, exec, the node proxy),
// Pods and Services (their proxies), webhooks and aggregated APIs that are Services. Webhooks that
// are URLs, etcd, authentication and audit are not in the cluster.
func dialThrough(selector *egressselector.EgressSelector, with func(DialFunc) DialFunc) (*egressselector.EgressSelector, error) {
	dialers := map[egressselector.EgressType]utilnet.DialFunc{
		// upstream's dialers have these limits
		egressselector.Cluster: (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
	}
	if selector != nil {
		for _, to := range []egressselector.EgressType{egressselector.ControlPlane, egressselector.Etcd, egressselector.Cluster} {
			selected, err := selector.Lookup(to.AsNetworkContext())
			if err != nil {
				return nil, fmt.Errorf("look up the dialer for %s: %w", to, err)
			}
			if selected != nil {
				dialers[to] = selected
			}
		}
	}
	dialers[egressselector.Cluster] = with(dialers[egressselector.Cluster])
	return egressselector.NewEgressSelectorWithMap(dialers), nil
}
