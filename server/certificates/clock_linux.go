package certificates

import (
	"time"

	"golang.org/x/sys/unix"
)

// machineClock is a clock whose elapsed time counts from the start of the machine. It runs on
// while the machine sleeps, where Go's own stops: the clock of a laptop that wakes up was
// not set.
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
