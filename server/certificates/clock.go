package certificates

import (
	"context"
	"time"
)

// clockCheck is how often the clock is asked whether it was set, and clockSlack what
// it may be off by without having been: NTP slews it by less.
const (
	clockCheck = 10 * time.Second
	clockSlack = time.Minute
)

// A clock tells the time of day, which NTP may set by decades on a board without a
// battery, and the time since some moment, which nothing but a sleep holds up.
type clock func() (day time.Time, elapsed time.Duration)

func systemClock() clock {
	began := time.Now()
	return func() (time.Time, time.Duration) {
		now := time.Now()
		return now.Round(0), now.Sub(began) // Round takes the monotonic reading away
	}
}

// watchClock tells by how much the time of day was set, soon after it was, until
// ctx ends; a machine that has slept looks like one whose clock was set forward.
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
			default: // the one before is not looked at yet, and will do
			}
		}
	}()
	return steps
}
