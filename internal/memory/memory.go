// Package memory keeps a server's process small. It sets the garbage collector's target and
// a soft limit, and returns to the system what a start has left.
package memory

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// restPercent is how much the heap of a running server may grow before a collection, in
	// percent of the live heap, like GOGC.
	restPercent = 75
	// startPercent is the same for a start. What is left of a larger heap is memory at rest:
	// server/DESIGN.md has figures.
	startPercent = 200
	// hastyPercent is the same for the start of a server whose time matters more than its memory.
	hastyPercent = 400
)

const (
	// quiet is how long a server must not have been busy before it returns what its start has left.
	quiet = time.Second
	// lull is how often Karve checks after that whether there is memory to return. Without requests, the next
	// collection may come two minutes later, and keeps most of it.
	lull = 10 * time.Second
	// rests is in how many lulls after a busy time memory is returned: controllers and caches work for
	// some seconds after it, and leave garbage once more.
	rests = 2
	// worth is how many bytes justify a collection of a small heap.
	worth = 16 << 20
	// share is the same as a part of the live heap. What a collection costs grows with that: a
	// thousand idle nodes would make one of a large heap due every ten seconds.
	share = 2
)

// Collector is the garbage collector of this process, with a limit.
type Collector struct {
	percent, limit func()
	room           int64
	end, ended     chan struct{} // nil before Settle
}

// Begin sets a soft limit in bytes for what the Go runtime uses (debug.SetMemoryLimit).
// Near the limit, the collector takes up to half of the CPU, and no allocation is refused.
// A hasty server collects less until it settles.
func Begin(limit int64, hasty bool) *Collector {
	before := debug.SetMemoryLimit(limit)
	c := &Collector{percent: func() {}, limit: func() { debug.SetMemoryLimit(before) }, room: roomWithin(limit)}
	if hasty {
		c.setPercent(hastyPercent)
	} else {
		c.setPercent(startPercent)
	}
	return c
}

// setPercent sets the target, unless the user has set GOGC.
func (c *Collector) setPercent(percent int) {
	if os.Getenv("GOGC") != "" {
		return
	}
	before, restore := debug.SetGCPercent(percent), c.percent
	c.percent = func() { debug.SetGCPercent(before); restore() }
}

// Settle sets the target for a running server, after a delay. In its first quiet second after that, the
// server returns to the system what the start has left: memory, and the pages of the program that only a
// start needs. In lulls, it returns what a busy time has left.
func (c *Collector) Settle(after time.Duration) { c.watch(after, quiet, lull) }

func giveBack() {
	debug.FreeOSMemory()
	_ = dropProgram() // if the kernel cannot, nothing is lost
}

// watch sets the target after a delay, and then after each collection. Once in each period, it checks whether
// to return what is left after a burst of work, until End. The first of these periods has a length of its own.
func (c *Collector) watch(after, first, period time.Duration) {
	c.end, c.ended = make(chan struct{}), make(chan struct{})
	if after == 0 {
		c.setPercent(busyPercent(c.room)) // many clusters are used at once
	}
	go func() {
		defer close(c.ended)
		if after > 0 {
			select {
			case <-time.After(after):
				c.setPercent(busyPercent(c.room))
			case <-c.end:
				return
			}
		}
		c.follow(first, period)
	}()
}

func (c *Collector) follow(first, period time.Duration) {
	collected := make(chan struct{}, 1)
	if os.Getenv("GOGC") == "" {
		notify(collected, c.end)
	}
	tick := time.NewTicker(first)
	defer tick.Stop()
	var sinceCollection, sinceTick meter
	sinceCollection.busy()
	sinceTick.busy()
	due, before := rests, uint64(0)
	for {
		select {
		case <-collected:
			adapt(c.room, sinceCollection.busy())
			continue
		case <-tick.C:
		case <-c.end:
			return
		}
		busy := sinceTick.busy()
		cycles, spare, live := heap()
		switch {
		case busy:
			due = rests
		case due > 0:
			giveBack()
			due--
			tick.Reset(period)
		case cycles == before && pays(spare, live):
			debug.FreeOSMemory()
		}
		before, _, _ = heap()
	}
}

// heap returns the number of collections so far, and about how much memory another one
// could return to the system: what was allocated since the last one, most of which is
// garbage by now, and what is free already. live is what the last one has kept.
func heap() (cycles, spare, live uint64) {
	figures := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"},
		{Name: "/gc/heap/live:bytes"}, // at the end of the last collection
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(figures)
	value := func(i int) uint64 { return figures[i].Value.Uint64() }
	return value(0), value(2) - min(value(1), value(2)) + value(3), value(1)
}

// pays reports whether a collection of the live heap is worth what it returns to the system.
func pays(spare, live uint64) bool { return spare > max(worth, live/share) }

// End restores everything to what it was before Begin. It must not be called during Settle.
func (c *Collector) End() {
	if c.end != nil {
		close(c.end)
		<-c.ended
	}
	c.percent()
	c.limit()
}
