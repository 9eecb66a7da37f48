// Package queues counts the items of work queues, and does without two of their metrics.
//
// Each queue of upstream's has a goroutine that wakes up twice a second and sets two
// gauges: how long its workers have been busy (updateUnfinishedWorkLoop in k8s.io/client-go,
// util/workqueue/queue.go). With ninety queues, these are half of the wake-ups of an idle
// control plane. Here the goroutine ends when it first sets a gauge, and the process has no metrics
// workqueue_unfinished_work_seconds and workqueue_longest_running_processor_seconds. The others are upstream's.
package queues

import (
	"runtime"
	"sync/atomic"
	_ "unsafe" // for go:linkname

	"k8s.io/client-go/util/workqueue"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // sets provider
)

// provider makes the metrics of all queues. Upstream's workqueue.SetProvider sets it only once,
// and upstream calls it. When upstream renames it, the goroutines are not ended, nothing is counted, and
// TestProviderIsUpstreams fails.
//
//go:linkname provider k8s.io/client-go/util/workqueue.globalMetricsProvider
var provider workqueue.MetricsProvider

func init() {
	if provider == nil {
		return
	}
	endLoops.Store(true)
	provider = queueMetrics{provider}
}

// items is the number of items in all queues, including those that workers are working on.
var items atomic.Int64

// Busy reports whether a queue of this process has an item, or a worker is working on one. An item
// that will be added later, after a failure or a delay, does not count. Items that were in a queue
// when it was shut down count for ever.
func Busy() bool { return items.Load() > 0 }

// endLoops is whether the goroutines end.
var endLoops atomic.Bool

// EndLoops switches off the goroutines, and the two gauges, of the queues of this process that start from now on
// (the default), or leaves them as upstream has them.
func EndLoops(end bool) { endLoops.Store(end) }

// queueMetrics is upstream's provider, for queues whose items are counted and whose goroutine ends.
type queueMetrics struct{ workqueue.MetricsProvider }

func (p queueMetrics) NewDepthMetric(queue string) workqueue.GaugeMetric {
	return depth{p.MetricsProvider.NewDepthMetric(queue)}
}

func (p queueMetrics) NewWorkDurationMetric(queue string) workqueue.HistogramMetric {
	return duration{p.MetricsProvider.NewWorkDurationMetric(queue)}
}

func (p queueMetrics) NewUnfinishedWorkSecondsMetric(queue string) workqueue.SettableGaugeMetric {
	if endLoops.Load() {
		return endLoop{}
	}
	return p.MetricsProvider.NewUnfinishedWorkSecondsMetric(queue)
}

func (p queueMetrics) NewLongestRunningProcessorSecondsMetric(queue string) workqueue.SettableGaugeMetric {
	if endLoops.Load() {
		return endLoop{}
	}
	return p.MetricsProvider.NewLongestRunningProcessorSecondsMetric(queue)
}

// depth learns when an item is added.
type depth struct{ workqueue.GaugeMetric }

func (d depth) Inc() {
	d.GaugeMetric.Inc()
	items.Add(1)
}

// duration learns when a worker has finished an item.
type duration struct{ workqueue.HistogramMetric }

func (d duration) Observe(seconds float64) {
	d.HistogramMetric.Observe(seconds)
	items.Add(-1)
}

// endLoop is a gauge that only a queue's goroutine sets. Setting it ends that goroutine. Goexit
// runs deferred calls: they release the queue's lock and its ticker, and a ShutDown that waits
// for the goroutine continues.
type endLoop struct{}

func (endLoop) Set(float64) { runtime.Goexit() }
