package election

import (
	"time"

	"golang.org/x/sys/unix"
)

// suspendedToo is CLOCK_BOOTTIME, which nobody sets.
var suspendedToo clock = func() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return wallClock() // this kernel has no such clock, now or later
	}
	return time.Duration(t.Nano())
}
