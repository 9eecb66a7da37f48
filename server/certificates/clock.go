package certificates

import (
	"context"
	"time"
)

// clockCheck is how often Karve checks whether the clock was set. A difference below
// clockSlack does not count: NTP slews the clock by less.
const (
	clockCheck = 10 * time.Second
	clockSlack = time.Minute
)

// A clock returns the time of day and an elapsed time. NTP may set the time of day by decades on a
// board without a battery. The elapsed time stops only while the machine sleeps.
type clock func() (day time.Time, elapsed time.Duration)

func systemClock() clock {
	began := time.Now()
	return func() (time.Time, time.Duration) {
		now := time.Now()
		return now.Round(0), now.Sub(began) // Round takes the monotonic reading away
	}
}

// watchClock watches the clock until ctx ends. Soon after the time of day was set, it sends the
// difference. A machine that has slept looks like one whose clock was set forward.
func watchClock(ctx context.Context, read clock) <-chan time.Duration {
	steps := make(chan time.Duration, 1)
	day, elapsed := read()
	go func() {
		tick := time.NewTicker(clockCheck)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			nowDay, nowElapsed := read()
			step := nowDay.Sub(day) - (nowElapsed - elapsed)
			day, elapsed = nowDay, nowElapsed
			if step.Abs() < clockSlack {
				continue
			}
			select {
			case steps <- step:
			default: // the previous one is still waiting to be received, and suffices
			}
		}
	}()
	return steps
}
