// Package queues lets the work queues of an idle process rest; to import it is all.
//
// Every named queue of client-go has a goroutine that wakes twice a second to set
// two gauges: how long its workers have been busy (k8s.io/client-go
// util/workqueue/queue.go, updateUnfinishedWorkLoop). With ninety queues that is half
// of what wakes an idle control plane. Here the first such look ends the goroutine,
// and the gauges are set when somebody asks for metrics. The other metrics of queues
// are untouched.
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
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // sets provider, and registers the gauges
)

// provider makes the metrics of all queues. Upstream lets it be set once
// (workqueue.SetProvider) and does that itself. unfinished and longest are the two
// gauges. TestNamesAreUpstreams fails when one of them is renamed; then, upstream's
// goroutines go on.
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
	provider = resting{provider}
	registry := legacyregistry.Registerer()
	for _, gauges := range []*metrics.GaugeVec{unfinished, longest} {
		registry.Unregister(gauges)
		registry.MustRegister(fresh{gauges})
	}
}

// fresh sets the gauges before they are read.
type fresh struct{ prometheus.Collector }

func (f fresh) Collect(out chan<- prometheus.Metric) {
	everything.show()
	f.Collector.Collect(out)
}

// resting is upstream's provider for queues that rest.
type resting struct{ workqueue.MetricsProvider }

func (p resting) NewDepthMetric(queue string) workqueue.GaugeMetric {
	return depth{p.MetricsProvider.NewDepthMetric(queue), everything.of(queue)}
}

func (p resting) NewWorkDurationMetric(queue string) workqueue.HistogramMetric {
	return duration{p.MetricsProvider.NewWorkDurationMetric(queue), everything.of(queue)}
}

func (p resting) NewUnfinishedWorkSecondsMetric(queue string) workqueue.SettableGaugeMetric {
	return looked{p.MetricsProvider.NewUnfinishedWorkSecondsMetric(queue)}
}

// depth sees what is added, and what workers take: a queue gets shorter in no other way.
type depth struct {
	workqueue.GaugeMetric
	work *work
}

func (d depth) Inc() {
	d.GaugeMetric.Inc()
	d.work.waiting.Add(1)
}

func (d depth) Dec() {
	held.RLock() // a worker takes something: see Hold
	//lint:ignore SA2001 nothing is protected: the worker waits here while there is a Hold
	held.RUnlock()
	d.GaugeMetric.Dec()
	d.work.begin(time.Now())
	d.work.waiting.Add(-1)
}

// duration sees what workers have done.
type duration struct {
	workqueue.HistogramMetric
	work *work
}

func (d duration) Observe(seconds float64) {
	d.HistogramMetric.Observe(seconds)
	d.work.end(time.Now().Add(-time.Duration(seconds * float64(time.Second))))
}

// looked is the gauge that is set at the first look of a queue's goroutine, which it
// ends. What the goroutine has deferred is done: it lets go of the queue's lock and
// of its ticker, and a ShutDown that waits for it goes on.
type looked struct{ workqueue.SettableGaugeMetric }

// lookLoop is upstream's function in which the goroutine stays for its life.
const lookLoop = ".updateUnfinishedWorkLoop"

func (l looked) Set(seconds float64) {
	l.SettableGaugeMetric.Set(seconds)
	var callers [8]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers[:])])
	for {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, lookLoop) {
			runtime.Goexit()
		}
		if !more {
			return // somebody else's goroutine
		}
	}
}

// work is what the workers of the queues of one name are busy with.
type work struct {
	waiting atomic.Int64 // items that no worker has taken

	mu    sync.Mutex
	since []time.Time
}

func (w *work) begin(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = append(w.since, now)
}

// end takes out what has begun nearest to the time.
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

// ages are how long everything has taken so far, together, and the longest.
func (w *work) ages(now time.Time) (total, oldest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.since {
		age := now.Sub(t)
		total, oldest = total+age, max(oldest, age)
	}
	return total, oldest
}

// works are the works of all queues by their names.
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

// held is locked while no worker may take anything.
var held sync.RWMutex

// Hold keeps the workers of all queues of this process from taking anything, until
// release is called, which must be soon: adding to a queue waits for a worker that
// waits. Informers go on, so what the workers take next they judge by what is known
// then. It does not wait for work that is under way; [Working] tells of that.
func Hold() (release func()) {
	held.Lock()
	return held.Unlock
}

// Working tells that some worker is at work.
func Working() bool { return everything.any((*work).working) }

// Busy tells that some queue has something in it, or a worker is at work. What is to be
// added later, after a failure or a delay, does not count. What was in a queue when that
// was shut down counts for ever.
func Busy() bool {
	return everything.any(func(w *work) bool { return w.waiting.Load() > 0 || w.working() })
}

func (all *works) any(is func(*work) bool) bool {
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

// show sets both gauges of every queue.
func (all *works) show() {
	all.mu.Lock()
	defer all.mu.Unlock()
	now := time.Now()
	for queue, w := range all.byName {
		total, oldest := w.ages(now)
		unfinished.WithLabelValues(queue).Set(total.Seconds())
		longest.WithLabelValues(queue).Set(oldest.Seconds())
	}
}
