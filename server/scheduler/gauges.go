package scheduler

import (
	_ "unsafe" // for go:linkname

	k8smetrics "k8s.io/component-base/metrics"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// The gauges that upstream does not export. Upstream's process ends with its lease, so that it never sets them back.
var (
	//go:linkname pendingPods k8s.io/kubernetes/pkg/scheduler/metrics.pendingPods
	pendingPods *k8smetrics.GaugeVec
	//go:linkname unschedulableReasons k8s.io/kubernetes/pkg/scheduler/metrics.unschedulableReasons
	unschedulableReasons *k8smetrics.GaugeVec
)

// resetGauges removes what a scheduler that has stopped has said of Pods: alerts would read it for as long as another server leads, and the
// next scheduler would count on from it. Goroutines count themselves down.
func resetGauges() {
	for _, gauge := range []*k8smetrics.GaugeVec{
		pendingPods, unschedulableReasons, metrics.QueuedEntities, metrics.InFlightEvents, metrics.CacheSize, metrics.AsyncAPIPendingCalls,
	} {
		if gauge != nil { // nothing has been registered
			gauge.Reset()
		}
	}
}
