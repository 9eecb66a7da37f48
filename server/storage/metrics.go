package storage

import (
	"sync"
	"sync/atomic"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/karve-k8s/karve/datastore"
)

// These are the datastore's metrics in the API server's /metrics. The registry is global to the
// process, so they are registered once. If several control planes run at the same time, /metrics
// shows those of the one that started last.

var (
	commitSeconds = metrics.NewHistogram(&metrics.HistogramOpts{
		Name: "karve_datastore_commit_duration_seconds", Help: "Time to make a batch of changes durable.",
		Buckets: metrics.ExponentialBuckets(0.0001, 2, 15), StabilityLevel: metrics.ALPHA,
	})
	commitChanges = metrics.NewHistogram(&metrics.HistogramOpts{
		Name: "karve_datastore_commit_changes", Help: "Changes in a durable batch.",
		Buckets: metrics.ExponentialBuckets(1, 2, 12), StabilityLevel: metrics.ALPHA,
	})
	storeFigures    = &figures{}
	registerFigures = sync.OnceFunc(func() {
		legacyregistry.MustRegister(commitSeconds, commitChanges)
		legacyregistry.CustomMustRegister(storeFigures)
	})
)

// observeCommit records a commit; it is for datastore.Options.OnCommit.
func (s *Storage) observeCommit(c datastore.Commit) {
	if s.config.Committed != nil {
		s.config.Committed(c.Duration)
	}
	commitSeconds.Observe(c.Duration.Seconds())
	commitChanges.Observe(float64(c.Rows))
}

// showFigures shows an engine's metrics until hide is called.
func showFigures(engine *datastore.Engine) (hide func()) {
	registerFigures()
	storeFigures.engine.Store(engine)
	return func() { storeFigures.engine.CompareAndSwap(engine, nil) }
}

// figures reads the engine's Stats when /metrics is read.
type figures struct {
	metrics.BaseStableCollector
	engine atomic.Pointer[datastore.Engine]
}

type figure struct {
	desc  *metrics.Desc
	kind  metrics.ValueType
	value func(*datastore.Stats) int64
}

func newFigure(name, help string, kind metrics.ValueType, value func(*datastore.Stats) int64) figure {
	return figure{metrics.NewDesc("karve_datastore_"+name, help, nil, nil, metrics.ALPHA, ""), kind, value}
}

var allFigures = []figure{
	newFigure("revision", "Newest durable revision.", metrics.GaugeValue, func(s *datastore.Stats) int64 { return s.Revision }),
	newFigure("compact_revision", "Revision of the newest compaction.", metrics.GaugeValue, func(s *datastore.Stats) int64 { return s.CompactRevision }),
	newFigure("keys", "Number of current keys.", metrics.GaugeValue, func(s *datastore.Stats) int64 { return s.Keys }),
	newFigure("live_bytes", "Size of the current keys and their values.", metrics.GaugeValue, func(s *datastore.Stats) int64 { return s.LiveBytes }),
	newFigure("history_events", "Changes since the newest compaction, which a watch can still return.", metrics.GaugeValue, func(s *datastore.Stats) int64 { return s.Events }),
	newFigure("cache_bytes", "Values kept in memory.", metrics.GaugeValue, func(s *datastore.Stats) int64 { return s.CacheBytes }),
	newFigure("wal_bytes", "Size of the write-ahead log.", metrics.GaugeValue, func(s *datastore.Stats) int64 { return s.WALBytes }),
	newFigure("compaction_backlog_rows", "Compacted rows not yet deleted from the file. With --durability relaxed, up to 1,024 wait for each other.", metrics.GaugeValue, func(s *datastore.Stats) int64 { return s.Backlog }),
	newFigure("watchers", "Open watches.", metrics.GaugeValue, func(s *datastore.Stats) int64 { return s.Watchers }),
	newFigure("slow_watchers", "Watches that are more than a response behind.", metrics.GaugeValue, func(s *datastore.Stats) int64 { return s.SlowWatchers }),
	newFigure("leases", "Granted leases.", metrics.GaugeValue, func(s *datastore.Stats) int64 { return s.Leases }),
	newFigure("commits_total", "Durable batches since the start.", metrics.CounterValue, func(s *datastore.Stats) int64 { return s.Commits }),
	newFigure("no_space", "1 while writes are refused because the disk is full.", metrics.GaugeValue, func(s *datastore.Stats) int64 {
		if s.NoSpace {
			return 1
		}
		return 0
	}),
}

// DescribeWithStability implements metrics.StableCollector.
func (f *figures) DescribeWithStability(out chan<- *metrics.Desc) {
	for _, one := range allFigures {
		out <- one.desc
	}
}

// CollectWithStability implements metrics.StableCollector.
func (f *figures) CollectWithStability(out chan<- metrics.Metric) {
	engine := f.engine.Load()
	if engine == nil {
		return
	}
	stats := engine.Stats()
	for _, one := range allFigures {
		out <- metrics.NewLazyConstMetric(one.desc, one.kind, float64(one.value(&stats)))
	}
}
