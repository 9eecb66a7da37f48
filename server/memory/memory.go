// Package memory keeps a server's process small: it sets the garbage collector's
// target, a soft limit, and gives back what a start has left.
package memory

import (
	"os"
	"runtime/debug"
	"time"
)

// restPercent is what the heap of a server that is up may grow by before it is
// collected, in percent of what lives, as GOGC has it. A start keeps Go's own 100:
// see the server's DESIGN.md.
const restPercent = 75

// hastyPercent is the same for the start of a server whose memory matters less than
// its time: a quarter of the CPU of such a start is the collector's.
const hastyPercent = 400

// again is how long after a start its last garbage is given back: controllers and
// caches go on for some seconds once everything is ready, and without requests it may
// be two minutes until the next collection.
const again = 10 * time.Second

// Collector is the garbage collector of this process, with a limit.
type Collector struct {
	percent, limit func()
	again          *time.Timer // nil before Settle
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
	c.again = time.AfterFunc(again, giveBack)
}

func giveBack() {
	debug.FreeOSMemory()
	_ = dropProgram() // a kernel that can't has lost nothing
}

// End sets everything to what it was before Begin. It is not called during Settle.
func (c *Collector) End() {
	if c.again != nil {
		c.again.Stop()
	}
	c.percent()
	c.limit()
}
