package scheduler

import (
	"strings"
	"testing"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// No gauge keeps what a scheduler that has stopped has said of Pods.
func TestNoGaugeOutlivesATerm(t *testing.T) {
	metrics.Register()
	metrics.UnschedulablePods().Inc()
	metrics.UnschedulableReason("NodeResourcesFit", "default-scheduler").Inc()
	metrics.ActiveEntities("Pod").Inc()
	metrics.CacheSize.WithLabelValues("nodes").Set(3)
	metrics.InFlightEvents.WithLabelValues("all").Set(1)
	gauges := func() (all []string) {
		families, err := legacyregistry.DefaultGatherer.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetType().String() == "GAUGE" && strings.HasPrefix(f.GetName(), "scheduler_") {
				all = append(all, f.GetName())
			}
		}
		return all
	}
	if got := gauges(); len(got) != 5 {
		t.Fatalf("%q, want 5 gauges", got)
	}
	resetGauges()
	if got := gauges(); len(got) > 0 {
		t.Errorf("after the end: %q", got)
	}
	metrics.UnschedulablePods().Inc() // of the next term
	if got := gauges(); len(got) != 1 {
		t.Errorf("in the next term: %q", got)
	}
}
