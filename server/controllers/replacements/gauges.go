package replacements

import (
	_ "unsafe" // for go:linkname

	"k8s.io/component-base/metrics"
	endpointslice "k8s.io/endpointslice/metrics"
	mirroring "k8s.io/kubernetes/pkg/controller/endpointslicemirroring/metrics"
	_ "k8s.io/kubernetes/pkg/controller/nodelifecycle" // has the gauges below
	"k8s.io/kubernetes/pkg/controller/podautoscaler/monitor"
	statefulset "k8s.io/kubernetes/pkg/controller/statefulset/metrics"
)

// The gauges of the nodes, which upstream does not export.
var (
	//go:linkname zoneHealth k8s.io/kubernetes/pkg/controller/nodelifecycle.zoneHealth
	zoneHealth *metrics.GaugeVec
	//go:linkname zoneSize k8s.io/kubernetes/pkg/controller/nodelifecycle.zoneSize
	zoneSize *metrics.GaugeVec
	//go:linkname unhealthyNodes k8s.io/kubernetes/pkg/controller/nodelifecycle.unhealthyNodes
	unhealthyNodes *metrics.GaugeVec
)

// ResetGauges removes what controllers that have stopped have said of the cluster. Alerts would read it for as long as another server leads.
// Upstream's process ends with its lease.
func ResetGauges() {
	for _, gauge := range []*metrics.GaugeVec{
		zoneHealth, zoneSize, unhealthyNodes, monitor.DesiredReplicasCount, statefulset.MaxUnavailable, statefulset.UnavailableReplicas,
		endpointslice.EndpointsDesired, endpointslice.NumEndpointSlices, endpointslice.DesiredEndpointSlices, endpointslice.ServicesCountByTrafficDistribution,
		mirroring.EndpointsDesired, mirroring.NumEndpointSlices, mirroring.DesiredEndpointSlices,
	} {
		gauge.Reset()
	}
	monitor.NumHorizontalPodAutoscalers.Set(0)
}
