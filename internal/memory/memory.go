// Package memory keeps a server's process small. It sets the garbage collector's target and a soft limit, and
// returns unused memory to the system in lulls. An explicit GOGC of the user switches off all of it but the limit.
package memory

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// How much the heap may grow before a collection, in percent of the live heap, as GOGC. server/DESIGN.md has
// figures.
const (
	startPercent = 200 // of a start
	hastyPercent = 400 // of a start whose time matters more than its memory
	roomyPercent = 150 // of a running server whose limit is roomy or higher
	smallPercent = 75  // of a running server with a lower limit
)

// roomy is what Limit's auto chooses on a machine of 6 GiB.
const roomy = 3 << 30

const (
	quiet = time.Second      // how long a server must not have been busy before the memory of its start is returned
	lull  = 10 * time.Second // the same later
	// busyRate is how many bytes a second a busy server allocates.
	busyRate = 16 << 20
	// rests is in how many lulls after a busy time memory is returned: controllers and caches work for some seconds
	// after it, and leave garbage once more.
	rests = 2
	// worth is how many bytes justify a collection in any other lull. A large heap has to have as much garbage as half of
	// what stays, because a collection of it costs more.
	worth = 16 << 20
)

// Collector is the garbage collector of this process, with a limit.
type Collector struct {
	limit, limitBefore int64
	tuned              bool // the user has not set GOGC
	percentBefore      int
	end, ended         chan struct{} // nil before Settle
}

// Begin sets a soft limit in bytes for what the Go runtime uses (debug.SetMemoryLimit).
// Near the limit, the collector takes up to half of the CPU, and no allocation is refused.
// A hasty server collects less until it settles.
func Begin(limit int64, hasty bool) *Collector {
	c := &Collector{limit: limit, limitBefore: debug.SetMemoryLimit(limit), tuned: os.Getenv("GOGC") == ""}
	if c.tuned && hasty {
		c.percentBefore = debug.SetGCPercent(hastyPercent)
	} else if c.tuned {
		c.percentBefore = debug.SetGCPercent(startPercent)
	}
	return c
}

// Settle sets the target for a running server, after a delay. In its first quiet second after that, the
// server returns to the system what the start has left: memory, and the pages of the program that only a
// start needs. In lulls, it returns what a busy time has left.
func (c *Collector) Settle(after time.Duration) {
	if c.tuned {
		c.settle(after, quiet, lull)
	}
}

func (c *Collector) settle(after, first, period time.Duration) {
	c.end, c.ended = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(c.ended)
		select {
		case <-time.After(after):
		case <-c.end:
			return
		}
		if c.limit < roomy {
			debug.SetGCPercent(smallPercent)
		} else {
			debug.SetGCPercent(roomyPercent)
		}
		c.giveBackInLulls(first, period)
	}()
}

func (c *Collector) giveBackInLulls(first, period time.Duration) {
	tick := time.NewTicker(first)
	defer tick.Stop()
	before, since := readHeap(), time.Now()
	for due := rests; ; {
		select {
		case <-tick.C:
		case <-c.end:
			return
		}
		now := readHeap()
		switch {
		case float64(now.allocated-before.allocated) >= busyRate*time.Since(since).Seconds():
			due = rests
		case due > 0:
			debug.FreeOSMemory()
			_ = dropProgram() // if the kernel cannot, nothing is lost
			due--
			tick.Reset(period)
		case now.spare > max(worth, now.live/2):
			debug.FreeOSMemory()
		}
		before, since = now, time.Now()
	}
}

// heap is the state of the heap, in bytes.
type heap struct {
	allocated uint64 // since the process began
	live      uint64 // what the last collection has kept
	spare     uint64 // what another one could return to the system: most of what came since, and what is free already
}

func readHeap() heap {
	figures := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"},
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(figures)
	value := func(i int) uint64 { return figures[i].Value.Uint64() }
	return heap{value(0), value(1), value(2) - min(value(1), value(2)) + value(3)}
}

// End restores everything to what it was before Begin. It must not be called during Settle.
func (c *Collector) End() {
	if c.end != nil {
		close(c.end)
		<-c.ended
	}
	if c.tuned {
		debug.SetGCPercent(c.percentBefore)
	}
	debug.SetMemoryLimit(c.limitBefore)
}
