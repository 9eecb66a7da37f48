package apiserver

import (
	"context"
	"fmt"
	"net"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/kubernetes/pkg/controlplane"
)

// DialFunc is the signature of net.Dialer's DialContext.
type DialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// dialThrough wraps the dialers of connections to kubelets (logs, exec, the node proxy) and to
// Pods and Services (their proxies, webhooks, aggregated APIs).
func dialThrough(kube *controlplane.Config, with func(DialFunc) DialFunc) {
	kubelets := &kube.Extra.KubeletClientConfig
	lookup := kubelets.Lookup
	kubelets.Lookup = func(to egressselector.NetworkContext) (utilnet.DialFunc, error) {
		// transport.New uses the same dialer if it gets none.
		next := utilnet.DialFunc((&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext)
		if lookup != nil {
			selected, err := lookup(to)
			if err != nil {
				return nil, fmt.Errorf("look up the dialer for nodes: %w", err)
			}
			if selected != nil {
				next = selected
			}
		}
		return with(next), nil
	}
	proxies := kube.ControlPlane.ProxyTransport
	proxies.DialContext = with(proxies.DialContext)
}
