package replacements

import (
	"testing"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubernetes/pkg/controller/nodelifecycle"
	"k8s.io/kubernetes/pkg/controller/podautoscaler/monitor"
)

// The nodes that were unhealthy when a server lost its lease are no alert of that server.
func TestNoGaugeOutlivesATerm(t *testing.T) {
	nodelifecycle.Register()
	monitor.Register()
	zoneHealth.WithLabelValues("zone").Set(50)
	zoneSize.WithLabelValues("zone").Set(2)
	unhealthyNodes.WithLabelValues("zone").Set(1)
	monitor.NumHorizontalPodAutoscalers.Set(2)
	monitor.DesiredReplicasCount.WithLabelValues("default", "web").Set(3)
	values := func() (all map[string]float64) {
		families, err := legacyregistry.DefaultGatherer.Gather()
		if err != nil {
			t.Fatal(err)
		}
		all = map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if m.GetGauge().GetValue() != 0 {
					all[f.GetName()] = m.GetGauge().GetValue()
				}
			}
		}
		return all
	}
	names := []string{"node_collector_zone_health", "node_collector_zone_size", "node_collector_unhealthy_nodes_in_zone",
		"horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers", "horizontal_pod_autoscaler_controller_desired_replicas"}
	before := values()
	ResetGauges()
	after := values()
	for _, name := range names {
		if before[name] == 0 || after[name] != 0 {
			t.Errorf("%s: %v, and %v after the end", name, before[name], after[name])
		}
	}
}
