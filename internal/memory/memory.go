// Package memory keeps a server's process small: it sets the garbage collector's
// target, a soft limit, and gives back what a start has left.
package memory

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// restPercent is what the heap of a server that is up may grow by before it is
// collected, in percent of what lives, as GOGC has it. A start keeps Go's own 100:
// see the server's DESIGN.md.
const restPercent = 75

// hastyPercent is the same for the start of a server whose memory matters less than
// its time: a quarter of the CPU of such a start is the collector's.
const hastyPercent = 400

const (
	// lull is how often it is looked whether there is memory to give back. The first
	// time there always is: controllers and caches go on for some seconds once
	// everything is ready. Later it is what a burst of work has left: without requests
	// it may be two minutes until the next collection, which keeps most of it.
	lull = 10 * time.Second
	// worth is how many bytes of it are worth a collection.
	worth = 16 << 20
)

// Collector is the garbage collector of this process, with a limit.
type Collector struct {
	percent, limit func()
	end, ended     chan struct{} // nil before Settle
}

// Begin sets a soft limit in bytes to what the Go runtime uses (debug.SetMemoryLimit):
// near it, collecting takes more and more of the CPU, up to half, and nothing is
// refused. A hasty server collects less until it settles.
func Begin(limit int64, hasty bool) *Collector {
	before := debug.SetMemoryLimit(limit)
	c := &Collector{percent: func() {}, limit: func() { debug.SetMemoryLimit(before) }}
	if hasty {
		c.setPercent(hastyPercent)
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

// Settle sets the target for a server that is up, and gives back to the system what the start has left: memory, and the pages of the
// program that only a start needs.
func (c *Collector) Settle() {
	c.setPercent(restPercent)
	giveBack()
	c.watch(lull)
}

func giveBack() {
	debug.FreeOSMemory()
	_ = dropProgram() // a kernel that can't has lost nothing
}

// watch looks so often whether to give back what is left when work has come to a
// lull, until End.
func (c *Collector) watch(period time.Duration) {
	c.end, c.ended = make(chan struct{}), make(chan struct{})
	go c.giveBackInLulls(time.NewTicker(period))
}

func (c *Collector) giveBackInLulls(tick *time.Ticker) {
	defer close(c.ended)
	defer tick.Stop()
	first, before := true, uint64(0)
	for {
		select {
		case <-tick.C:
		case <-c.end:
			return
		}
		cycles, spare := heap()
		switch {
		case first:
			giveBack()
			first = false
		case cycles == before && spare > worth:
			debug.FreeOSMemory()
		}
		before, _ = heap()
	}
}

// heap tells how many collections there have been, and how much memory another one
// could give back to the system, about: what has been allocated since the last, of
// which most is garbage by now, and what is free already.
func heap() (cycles, spare uint64) {
	figures := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"},
		{Name: "/gc/heap/live:bytes"}, // at the end of the last one
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(figures)
	value := func(i int) uint64 { return figures[i].Value.Uint64() }
	return value(0), value(2) - min(value(1), value(2)) + value(3)
}

// End sets everything to what it was before Begin. It is not called during Settle.
func (c *Collector) End() {
	if c.end != nil {
		close(c.end)
		<-c.ended
	}
	c.percent()
	c.limit()
}
