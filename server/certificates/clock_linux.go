package certificates

import (
	"time"

	"golang.org/x/sys/unix"
)

// machineClock is a clock whose elapsed time is that since the machine was started. It
// does not stand still while the machine sleeps, which Go's own does: a laptop that wakes up is not one
// whose clock was set.
func machineClock() clock {
	fallback := systemClock()
	return func() (time.Time, time.Duration) {
		var boot unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
			return fallback() // as before Linux 2.6.39
		}
		return time.Now().Round(0), time.Duration(boot.Nano())
	}
}
