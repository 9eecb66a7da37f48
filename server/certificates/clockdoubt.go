package certificates

import (
	"os"
	"sync"
	"time"

	"github.com/karve-k8s/karve/certs"
)

// clockDoubt reports whether the time of day may be wrong by hours or decades, so that some service
// is likely to set it soon. The clock is in doubt
//
//   - when it shows a time before this program was built;
//   - for a day after it was set by a minute or more: a service that sets a clock by decades may
//     correct its time zone in a second step;
//   - for a day after the machine started, if systemd-timesyncd is there and has not set it yet: the
//     hardware clock may be in another time zone.
//
// On other machines nothing is known to set the clock soon, so Karve trusts it.
type clockDoubt struct {
	read   clock
	synced func() bool // false if a service is there that sets the clock, but has not set it yet

	mu      sync.Mutex
	day     time.Time     // at the last reading
	elapsed time.Duration // at the last reading
	until   time.Duration // when the doubt ends, as elapsed time
}

// ClockDoubt returns a function that reports whether this machine's clock is in doubt now.
func ClockDoubt() (doubted func() bool) { return newClockDoubt(machineClock(), timesyncd).doubted }

// doubtTime is how long a clock is in doubt.
const doubtTime = 24 * time.Hour

func newClockDoubt(read clock, synced func() bool) *clockDoubt {
	d := &clockDoubt{read: read, synced: synced}
	d.day, d.elapsed = read()
	d.until = d.elapsed
	return d
}

// doubted reports whether the clock is in doubt now.
func (d *clockDoubt) doubted() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	day, elapsed := d.read()
	step := day.Sub(d.day) - (elapsed - d.elapsed)
	d.day, d.elapsed = day, elapsed
	if step.Abs() >= clockSlack || day.Before(certs.Reference()) {
		d.until = elapsed + doubtTime
	}
	return elapsed < d.until || elapsed < doubtTime && !d.synced()
}

// systemd-timesyncd has timesyncDir while it runs. It creates timesyncDone when it has set the
// clock for the first time since the machine started (systemd-timesyncd.service(8)).
const (
	timesyncDir  = "/run/systemd/timesync"
	timesyncDone = timesyncDir + "/synchronized"
)

// timesyncd reports whether systemd-timesyncd has set the clock or does not run.
func timesyncd() bool {
	if _, err := os.Stat(timesyncDir); err != nil {
		return true
	}
	_, err := os.Stat(timesyncDone)
	return err == nil
}
