package main

import (
	"slices"
	"sync"
	"time"
)

// latencies collect how long requests took, since the last sample and in all.
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

// take returns the sorted latencies of writes and reads since the last take.
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
