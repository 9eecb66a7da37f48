package queues

import (
	"bytes"
	"fmt"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/karve-k8s/karve/internal/eventually"
)

func TestNamesAreUpstreams(t *testing.T) {
	if provider == nil {
		t.Error("provider is nil: upstream no longer sets workqueue.globalMetricsProvider, look for its new name")
	}
	if unfinished == nil || longest == nil {
		t.Error("unfinished or longest is nil: look for the new names of upstream's gauges")
	}
}

// upstreams are the metrics of a queue that has upstream's provider and its goroutine.
func upstreams(t *testing.T) workqueue.MetricsProvider {
	t.Helper()
	ours, ok := provider.(queueMetrics)
	if !ok {
		t.Fatalf("the provider is a %T, want ours", provider)
	}
	return ours.MetricsProvider
}

func queue(t *testing.T, name string, provider workqueue.MetricsProvider) workqueue.TypedRateLimitingInterface[string] {
	t.Helper()
	q := workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.DefaultTypedControllerRateLimiter[string](),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: name, MetricsProvider: provider})
	t.Cleanup(q.ShutDown)
	return q
}

// loops counts the goroutines that set the two gauges of a queue.
func loops(t *testing.T) int {
	t.Helper()
	var all bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&all, 2); err != nil {
		t.Fatal(err)
	}
	return strings.Count(all.String(), ".updateUnfinishedWorkLoop(")
}

// isAge reports whether a metric is one of the two gauges.
func isAge(metric string) bool {
	return strings.HasPrefix(metric, "workqueue_unfinished") || strings.HasPrefix(metric, "workqueue_longest")
}

// values returns all metrics of a queue except the buckets of histograms.
func values(t *testing.T, queue string) map[string]float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) != 1 || m.GetLabel()[0].GetValue() != queue || !strings.HasPrefix(f.GetName(), "workqueue_") {
				continue
			}
			switch name := f.GetName() + " " + f.GetHelp(); {
			case m.Gauge != nil:
				got[name] = m.Gauge.GetValue()
			case m.Counter != nil:
				got[name] = m.Counter.GetValue()
			case m.Histogram != nil:
				got[name] = float64(m.Histogram.GetSampleCount())
			}
		}
	}
	return got
}

// Without the goroutine, a queue behaves like upstream's and has the same metrics.
func TestMetricsAreUpstreams(t *testing.T) {
	theirs := queue(t, "theirs", upstreams(t))
	eventually.Nil(t, "upstream's queue has a goroutine", func() error {
		if n := loops(t); n != 1 {
			return fmt.Errorf("got %d", n)
		}
		return nil
	})
	ours := queue(t, "ours", nil)
	eventually.Nil(t, "the goroutine of our queue ends", func() error {
		if n := loops(t); n != 1 {
			return fmt.Errorf("got %d goroutines, want only upstream's", n)
		}
		return nil
	})

	// The same steps happen in both queues: workers take three items and finish one, one item
	// is added again while a worker has it, and one waits.
	both := []workqueue.TypedRateLimitingInterface[string]{theirs, ours}
	each := func(do func(workqueue.TypedRateLimitingInterface[string])) {
		for _, q := range both {
			do(q)
		}
	}
	take := func(q workqueue.TypedRateLimitingInterface[string]) {
		if _, down := q.Get(); down {
			t.Error("the queue is down")
		}
	}
	each(func(q workqueue.TypedRateLimitingInterface[string]) { q.Add("a"); q.Add("b"); q.Add("c"); q.Add("d") })
	each(take)
	time.Sleep(300 * time.Millisecond)
	each(take)
	each(take)
	each(func(q workqueue.TypedRateLimitingInterface[string]) { q.Done("b"); q.AddRateLimited("c") })
	compare := func(when string) map[string]float64 {
		t.Helper()
		var got, want map[string]float64
		eventually.Nil(t, when+": the same as upstream", func() error {
			got, want = values(t, "ours"), values(t, "theirs")
			if len(want) != 7 || len(got) != len(want) {
				return fmt.Errorf("got %d metrics, upstream has %d, want 7", len(got), len(want))
			}
			for name, w := range want {
				// Upstream's time gauges lag behind by up to half a second for each item.
				tolerance := 0.0
				if isAge(name) {
					tolerance = 2
				}
				if g, ok := got[name]; !ok || g < w-tolerance || g > w+tolerance {
					return fmt.Errorf("%s: got %v (there: %v), want %v", name, g, ok, w)
				}
			}
			return nil
		})
		return got
	}
	time.Sleep(time.Second)
	busy := compare("busy")
	for name, v := range busy {
		if strings.Contains(name, "unfinished") && v < 2 { // a and c, a second each
			t.Errorf("%s: got %v, want the time of both items", name, v)
		}
		if strings.Contains(name, "longest") && v < 1.2 { // a
			t.Errorf("%s: got %v, want the time of the older one", name, v)
		}
	}
	each(func(q workqueue.TypedRateLimitingInterface[string]) {
		q.Done("a")
		q.Done("c")
		for range 2 { // c again, and d
			item, _ := q.Get()
			q.Done(item)
		}
	})
	idle := compare("idle again")
	for name, v := range idle {
		if isAge(name) && v != 0 {
			t.Errorf("%s: got %v, want 0", name, v)
		}
	}
	each(func(q workqueue.TypedRateLimitingInterface[string]) { q.ShutDownWithDrain() })
}

// firstSet closes set when the gauge is first set.
type firstSet struct {
	workqueue.MetricsProvider
	set chan struct{}
}

func (p firstSet) NewUnfinishedWorkSecondsMetric(string) workqueue.SettableGaugeMetric { return p }

func (p firstSet) Set(float64) { close(p.set) }

// The goroutine releases its locks when it ends, so the queue works and can be shut down.
func TestQueueShutsDownAfterItsGoroutineEnded(t *testing.T) {
	first := firstSet{upstreams(t), make(chan struct{})}
	q := queue(t, "down", queueMetrics{first})
	<-first.set
	eventually.Nil(t, "the goroutine ends", func() error {
		if n := loops(t); n != 0 {
			return fmt.Errorf("got %d goroutines", n)
		}
		return nil
	})
	down := make(chan struct{})
	go func() {
		defer close(down)
		q.Add("a")
		if item, _ := q.Get(); item != "a" {
			t.Errorf("got %q, want a", item)
		}
		q.Done("a")
		q.ShutDown()
	}()
	eventually.Receive(t, "the queue shuts down, and waits for no goroutine or lock", down)
}

// A queue has work until its last item is done, and not while none is due.
func TestBusy(t *testing.T) {
	q := queue(t, "busy", nil)
	was := items.Load() // those of other tests
	want := func(what string, more int64) {
		t.Helper()
		if got := items.Load() - was; got != more {
			t.Errorf("%s: %d items are counted, want %d", what, got, more)
		}
	}
	want("a new queue", 0)
	q.AddAfter("later", time.Hour)
	want("one item is not due", 0)
	q.Add("a")
	q.Add("a")
	q.Add("b")
	want("two wait", 2)
	first, _ := q.Get()
	want("a worker has one of them", 2)
	q.Add(first)
	want("it is added again meanwhile", 3)
	q.Done(first)
	want("the worker has finished once", 2)
	if !Busy() {
		t.Error("two items wait, and nothing is busy")
	}
	for range 2 {
		item, _ := q.Get()
		q.Done(item)
	}
	want("everything is done", 0)
}
