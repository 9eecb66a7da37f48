package load

import (
	"slices"
	"sync"
	"time"
)

// latencies collects how long requests took, until the next sample.
type latencies struct {
	mu   sync.Mutex
	took map[string][]time.Duration
	all  map[string][]time.Duration
}

func newLatencies() *latencies {
	return &latencies{took: map[string][]time.Duration{}, all: map[string][]time.Duration{}}
}

func (l *latencies) add(what string, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took[what] = append(l.took[what], d)
	l.all[what] = append(l.all[what], d)
}

// take returns what was added since the last take, under one name for all writes.
func (l *latencies) take() (writes, reads []time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	writes = slices.Concat(l.took["create"], l.took["update"], l.took["delete"])
	reads = slices.Concat(l.took["get"], l.took["list"])
	clear(l.took)
	slices.Sort(writes)
	slices.Sort(reads)
	return writes, reads
}

// quantile is the nearest-rank quantile of sorted values, 0 without any.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
