package certificates

import (
	"testing"
	"time"

	"github.com/karve-k8s/karve/certs"
)

// What a machine lives through, and whether its clock is doubted then.
func TestClockDoubt(t *testing.T) {
	right := certs.Reference().AddDate(0, 6, 0)
	type step struct {
		what string
		pass time.Duration // elapses
		set  time.Duration // and the time of day is set by this
		want bool
	}
	for name, machine := range map[string]struct {
		begins time.Time
		synced bool
		steps  []step
	}{
		"a clock that is right": {right, true, []step{
			{"started", 0, 0, false}, {"slewed", time.Hour, 30 * time.Second, false}, {"a month later", 720 * time.Hour, 0, false},
		}},
		"a board of 1970": {time.Unix(86400, 0), true, []step{
			{"started", 0, 0, true}, {"an hour later", time.Hour, 0, true}, {"days later", 72 * time.Hour, 0, true},
			{"set by NTP", 0, right.Sub(time.Unix(86400, 0)), true}, {"an hour later", time.Hour, 0, true},
			{"its time zone put right", 0, -5 * time.Hour, true}, {"23 hours later", 23 * time.Hour, 0, true}, {"a day later", time.Hour, 0, false},
		}},
		"a clock in a time zone of its own": {right, true, []step{
			{"started", time.Hour, 0, false}, {"set back", 0, -5 * time.Hour, true}, {"a day later", 24 * time.Hour, 0, false},
			{"set forward", 0, time.Minute, true},
		}},
		"timesyncd that has not set it": {right, false, []step{
			{"started", 0, 0, true}, {"an hour later", time.Hour, 0, true}, {"a day later", 23 * time.Hour, 0, false},
		}},
	} {
		var elapsed, off time.Duration
		d := newClockDoubt(func() (time.Time, time.Duration) { return machine.begins.Add(elapsed + off), elapsed }, func() bool { return machine.synced })
		for _, s := range machine.steps {
			elapsed += s.pass
			off += s.set
			if got := d.doubted(); got != s.want {
				t.Errorf("%s, %s: doubted %v, want %v", name, s.what, got, s.want)
			}
		}
	}
}
