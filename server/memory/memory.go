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
// refused.
func Begin(limit int64) *Collector {
	before := debug.SetMemoryLimit(limit)
	return &Collector{percent: func() {}, limit: func() { debug.SetMemoryLimit(before) }}
}

// Settle sets the target for a server that is up, unless the user has set GOGC, and
// gives back to the system what the start has left: memory, and the pages of the
// program that only a start needs.
func (c *Collector) Settle() {
	if os.Getenv("GOGC") == "" {
		before := debug.SetGCPercent(restPercent)
		c.percent = func() { debug.SetGCPercent(before) }
	}
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
