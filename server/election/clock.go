package election

import "time"

// clock reads how much time has passed since some moment, including the time in which the machine was
// suspended. Go's timers and monotonic readings may leave that out: on Linux, CLOCK_MONOTONIC stands still.
type clock func() time.Duration

// moment is a point in time by two clocks.
type moment struct {
	running time.Time     // with a monotonic reading
	all     time.Duration // of a clock
}

func (c clock) now() moment { return moment{time.Now(), c()} }

func (m moment) add(d time.Duration) moment { return moment{m.running.Add(d), m.all + d} }

// past reports whether m is over by either clock. The zero moment is.
func (c clock) past(m moment) bool { return time.Now().After(m.running) || c() > m.all }

// left returns the time until m by the clock that is closer to it.
func (c clock) left(m moment) time.Duration { return min(time.Until(m.running), m.all-c()) }

// wallClock also sees a suspend. It sees that somebody sets the clock, too, which may end a term needlessly, or
// hide the suspend.
func wallClock() time.Duration { return time.Duration(time.Now().UnixNano()) }
