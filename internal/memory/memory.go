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
	// lull is how often Karve checks whether there is memory to return. Without requests, the next
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

// Settle sets the target for a running server. In a lull, the server returns to the system what
// the start, or a busy time, has left.
func (c *Collector) Settle() {
	if c.patient() {
		c.setPercent(busyPercent(c.room)) // many clusters are used at once
	} else {
		c.setPercent(restPercent)
	}
	c.watch(lull)
}

// patient reports whether there is plenty of memory, so that what a start has left may stay until
// the first lull.
func (c *Collector) patient() bool { return c.room >= plenty && os.Getenv("GOGC") == "" }

// GiveBack returns to the system what the start has left: memory, and the pages of the program
// that only a start needs. Where there is plenty of memory, it leaves that to the first lull.
func (c *Collector) GiveBack() {
	if !c.patient() {
		giveBack()
	}
}

func giveBack() {
	debug.FreeOSMemory()
	_ = dropProgram() // if the kernel cannot, nothing is lost
}

// watch adapts the target after each collection, and checks once in each period whether to return
// what is left after a burst of work, until End.
func (c *Collector) watch(period time.Duration) {
	c.end, c.ended = make(chan struct{}), make(chan struct{})
	collected := make(chan struct{}, 1)
	if os.Getenv("GOGC") == "" {
		notify(collected, c.end)
	}
	go c.follow(collected, time.NewTicker(period))
}

func (c *Collector) follow(collected <-chan struct{}, tick *time.Ticker) {
	defer close(c.ended)
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
