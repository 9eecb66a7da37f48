// Package queues counts the work of all work queues ([Busy]), and keeps the queues of an idle
// process from waking it up. Importing the package is enough.
//
// Every named queue of client-go has a goroutine that wakes up twice a second and sets two
// gauges: how long its workers have been busy (updateUnfinishedWorkLoop in k8s.io/client-go,
// util/workqueue/queue.go). With ninety queues, these are half of the wake-ups of an idle
// control plane. Here the goroutine ends when it first sets the gauges, and the gauges are
// computed when a client asks for metrics. The other metrics of queues are upstream's.
package queues

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // sets provider
)

// provider makes the metrics of all queues. Upstream's workqueue.SetProvider sets it only once,
// and upstream calls it. unfinished and longest are the two gauges. When upstream renames one
// of them, its goroutines are not ended, nothing is counted, and TestNamesAreUpstreams fails.
var (
	//go:linkname provider k8s.io/client-go/util/workqueue.globalMetricsProvider
	provider workqueue.MetricsProvider
	//go:linkname unfinished k8s.io/component-base/metrics/prometheus/workqueue.unfinished
	unfinished *metrics.GaugeVec
	//go:linkname longest k8s.io/component-base/metrics/prometheus/workqueue.longestRunningProcessor
	longest *metrics.GaugeVec
)

func init() {
	if provider == nil || unfinished == nil || longest == nil {
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

// EndLoops switches off the goroutines of the queues of this process that start from now on
// (the default), or leaves them as upstream has them.
func EndLoops(end bool) { endLoops.Store(end) }

// queueMetrics is upstream's provider, for queues whose items are counted and whose goroutine ends.
type queueMetrics struct{ workqueue.MetricsProvider }

func (p queueMetrics) NewDepthMetric(queue string) workqueue.GaugeMetric {
	return depth{p.MetricsProvider.NewDepthMetric(queue), workOf(queue)}
}

func (p queueMetrics) NewWorkDurationMetric(queue string) workqueue.HistogramMetric {
	return duration{p.MetricsProvider.NewWorkDurationMetric(queue), workOf(queue)}
}

func (p queueMetrics) NewUnfinishedWorkSecondsMetric(queue string) workqueue.SettableGaugeMetric {
	gauge := p.MetricsProvider.NewUnfinishedWorkSecondsMetric(queue)
	computeWhenRead()
	return endLoop{gauge}
}

// depth learns when an item is added, and when a worker takes one: only then a queue becomes shorter.
type depth struct {
	workqueue.GaugeMetric
	work *work
}

func (d depth) Inc() {
	d.GaugeMetric.Inc()
	items.Add(1)
}

func (d depth) Dec() {
	d.GaugeMetric.Dec()
	d.work.begin(time.Now())
}

// duration learns when a worker has finished an item.
type duration struct {
	workqueue.HistogramMetric
	work *work
}

func (d duration) Observe(seconds float64) {
	d.HistogramMetric.Observe(seconds)
	d.work.end(time.Now().Add(-time.Duration(seconds * float64(time.Second))))
	items.Add(-1)
}

// endLoop is the gauge that only a queue's goroutine sets. Setting it ends that goroutine. Goexit
// runs deferred calls: they release the queue's lock and its ticker, and a ShutDown that waits
// for the goroutine continues.
type endLoop struct{ workqueue.SettableGaugeMetric }

func (l endLoop) Set(seconds float64) {
	l.SettableGaugeMetric.Set(seconds)
	if endLoops.Load() {
		runtime.Goexit()
	}
}

// computeWhenRead registers the two gauges anew. Upstream must have registered them, which it
// does when it makes the metrics of the first queue.
var computeWhenRead = sync.OnceFunc(func() {
	registry := legacyregistry.Registerer()
	for _, gauges := range []*metrics.GaugeVec{unfinished, longest} {
		registry.Unregister(gauges)
		registry.MustRegister(computedGauges{gauges})
	}
})

// computedGauges are computed when they are read.
type computedGauges struct{ prometheus.Collector }

func (g computedGauges) Collect(out chan<- prometheus.Metric) {
	setGauges(time.Now())
	g.Collector.Collect(out)
}

// work is what the workers of the queues of one name are working on: when they took each item.
type work struct {
	mu    sync.Mutex
	since []time.Time
}

func (w *work) begin(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = append(w.since, now)
}

// end removes the item that was taken at began, which upstream has measured with a clock reading of its own:
// the nearest one.
func (w *work) end(began time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	nearest := -1
	for i, t := range w.since {
		if nearest < 0 || t.Sub(began).Abs() < w.since[nearest].Sub(began).Abs() {
			nearest = i
		}
	}
	if nearest < 0 {
		return
	}
	last := len(w.since) - 1
	w.since[nearest] = w.since[last]
	w.since = w.since[:last]
}

// ages returns how long the items have been worked on: the sum, and the longest.
func (w *work) ages(now time.Time) (total, oldest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.since {
		age := now.Sub(t)
		total, oldest = total+age, max(oldest, age)
	}
	return total, oldest
}

// byName has the work of queues by their names.
var byName sync.Map

func workOf(queue string) *work {
	w, _ := byName.LoadOrStore(queue, &work{})
	return w.(*work)
}

// setGauges sets both gauges of every queue.
func setGauges(now time.Time) {
	byName.Range(func(queue, w any) bool {
		total, oldest := w.(*work).ages(now)
		unfinished.WithLabelValues(queue.(string)).Set(total.Seconds())
		longest.WithLabelValues(queue.(string)).Set(oldest.Seconds())
		return true
	})
}
