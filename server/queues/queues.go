// Package queues keeps the work queues of an idle process from waking it up. Importing the
// package is enough.
//
// Every named queue of client-go has a goroutine that wakes up twice a second and sets two
// gauges: how long its workers have been busy (updateUnfinishedWorkLoop in k8s.io/client-go,
// util/workqueue/queue.go). With ninety queues, these are half of the wake-ups of an idle
// control plane. Here the goroutine ends when it first sets the gauges, and the gauges are
// computed when a client asks for metrics. The other metrics of queues are upstream's.
//
// The package also counts the items in all queues, so that a reset can keep workers from
// starting ([Hold]) and find out whether there is work ([Working], [Busy]).
package queues

import (
	"runtime"
	"strings"
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
// of them, its goroutines are not ended, and TestNamesAreUpstreams fails.
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
	provider = resting{provider}
}

// computeWhenRead registers the two gauges anew. Upstream must have registered them, which it
// does when it makes the metrics of the first queue.
var computeWhenRead = sync.OnceFunc(func() {
	registry := legacyregistry.Registerer()
	for _, gauges := range []*metrics.GaugeVec{unfinished, longest} {
		registry.Unregister(gauges)
		registry.MustRegister(fresh{gauges})
	}
})

// endLoops is whether the goroutines end.
var endLoops atomic.Bool

// EndLoops switches off the goroutines of the queues of this process that start from now on
// (the default), or leaves them as upstream has them.
func EndLoops(end bool) { endLoops.Store(end) }

// fresh computes the gauges when they are read.
type fresh struct{ prometheus.Collector }

func (f fresh) Collect(out chan<- prometheus.Metric) {
	everything.setGauges()
	f.Collector.Collect(out)
}

// resting is upstream's provider, for queues without such a goroutine.
type resting struct{ workqueue.MetricsProvider }

func (p resting) NewDepthMetric(queue string) workqueue.GaugeMetric {
	return depth{p.MetricsProvider.NewDepthMetric(queue), everything.of(queue)}
}

func (p resting) NewWorkDurationMetric(queue string) workqueue.HistogramMetric {
	return duration{p.MetricsProvider.NewWorkDurationMetric(queue), everything.of(queue)}
}

func (p resting) NewUnfinishedWorkSecondsMetric(queue string) workqueue.SettableGaugeMetric {
	gauge := p.MetricsProvider.NewUnfinishedWorkSecondsMetric(queue)
	computeWhenRead()
	return endLoop{gauge}
}

// depth counts the items that are added and those that workers take. A queue becomes shorter
// only when a worker takes an item.
type depth struct {
	workqueue.GaugeMetric
	work *work
}

func (d depth) Inc() {
	d.GaugeMetric.Inc()
	d.work.waiting.Add(1)
}

func (d depth) Dec() {
	held.RLock() // see Hold
	//lint:ignore SA2001 the lock protects nothing: the worker waits here during a Hold
	held.RUnlock()
	d.GaugeMetric.Dec()
	d.work.begin(time.Now())
	d.work.waiting.Add(-1)
}

// duration learns when a worker has finished an item.
type duration struct {
	workqueue.HistogramMetric
	work *work
}

func (d duration) Observe(seconds float64) {
	d.HistogramMetric.Observe(seconds)
	d.work.end(time.Now().Add(-time.Duration(seconds * float64(time.Second))))
}

// endLoop is the gauge that a queue's goroutine sets first, which ends the goroutine. Goexit
// runs deferred calls: they release the queue's lock and its ticker, and a ShutDown that waits
// for the goroutine continues.
type endLoop struct{ workqueue.SettableGaugeMetric }

// loopName is upstream's function in which the goroutine stays for its life.
const loopName = ".updateUnfinishedWorkLoop"

func (l endLoop) Set(seconds float64) {
	l.SettableGaugeMetric.Set(seconds)
	if !endLoops.Load() {
		return
	}
	var callers [8]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers[:])])
	for {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, loopName) {
			runtime.Goexit()
		}
		if !more {
			return // another goroutine
		}
	}
}

// work is what the queues of one name have to do.
type work struct {
	waiting atomic.Int64 // items that no worker has taken yet

	mu    sync.Mutex
	since []time.Time
}

func (w *work) begin(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = append(w.since, now)
}

// end removes the item whose start is nearest to began.
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

// works maps the names of queues to their work.
type works struct {
	mu     sync.Mutex
	byName map[string]*work
}

var everything = works{byName: map[string]*work{}}

func (all *works) of(queue string) *work {
	all.mu.Lock()
	defer all.mu.Unlock()
	w := all.byName[queue]
	if w == nil {
		w = &work{}
		all.byName[queue] = w
	}
	return w
}

// held is locked while workers must not take items.
var held sync.RWMutex

// Hold keeps the workers of all queues of this process from taking items until release is
// called. Call release soon, because adding to a queue waits for workers that wait. Informers
// continue, so workers handle their next item with what is known by then. Hold does not wait
// for work that is in progress: see [Working].
func Hold() (release func()) {
	held.Lock()
	return held.Unlock
}

// Working reports whether a worker is working on an item.
func Working() bool { return everything.some((*work).working) }

// Busy reports whether a queue has an item, or a worker is working on one. An item that will be
// added later, after a failure or a delay, does not count. Items that were in a queue when it
// was shut down count for ever.
func Busy() bool {
	return everything.some(func(w *work) bool { return w.waiting.Load() > 0 || w.working() })
}

func (all *works) some(is func(*work) bool) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, w := range all.byName {
		if is(w) {
			return true
		}
	}
	return false
}

func (w *work) working() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.since) > 0
}

// setGauges sets both gauges of every queue.
func (all *works) setGauges() {
	all.mu.Lock()
	defer all.mu.Unlock()
	now := time.Now()
	for queue, w := range all.byName {
		total, oldest := w.ages(now)
		unfinished.WithLabelValues(queue).Set(total.Seconds())
		longest.WithLabelValues(queue).Set(oldest.Seconds())
	}
}
