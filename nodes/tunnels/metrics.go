package tunnels

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// The metrics are in the API server's /metrics once tunnels are on.
var (
	healthyMetric = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Name: "apiserver_ssh_tunnel_healthy", Help: "Whether the SSH tunnel to a node is healthy (1) or not (0).", StabilityLevel: metrics.ALPHA,
	}, []string{"node"})
	dialsMetric = metrics.NewCounterVec(&metrics.CounterOpts{
		Name: "apiserver_ssh_tunnel_dials_total", Help: "Attempts to make the SSH connection to a node.", StabilityLevel: metrics.ALPHA,
	}, []string{"node"})
	failuresMetric = metrics.NewCounterVec(&metrics.CounterOpts{
		Name: "apiserver_ssh_tunnel_failures_total", Help: "Failed attempts to make the SSH connection to a node, and connections that ended, by reason.", StabilityLevel: metrics.ALPHA,
	}, []string{"node", "reason"})
)

var registerMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(healthyMetric, dialsMetric, failuresMetric)
})

// forgetMetrics removes what is known of a node that is no longer there.
func forgetMetrics(node string) {
	label := map[string]string{"node": node}
	healthyMetric.Delete(label)
	dialsMetric.Delete(label)
	for _, r := range reasons {
		failuresMetric.Delete(map[string]string{"node": node, "reason": r.reason})
	}
	failuresMetric.Delete(map[string]string{"node": node, "reason": "other"})
}
