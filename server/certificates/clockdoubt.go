package certificates

import (
	"os"
	"sync"
	"time"

	"github.com/karve-k8s/karve/certs"
)

// clockDoubt tells whether the time of day may be wrong, by hours or decades, so that
// it is about to be set. It is doubted
//
//   - when it says a time before this program was made;
//   - for a day after it was set, by a minute or more: what sets a clock by decades may
//     put its time zone right in a second step;
//   - for the first day of a machine, until systemd-timesyncd has set it, where that is
//     what sets it: the battery's clock may have been in a time zone of its own.
//
// On other machines nothing is known to be about to set it, and it is believed.
type clockDoubt struct {
	read   clock
	synced func() bool // false: a service is there that sets the clock, and has not

	mu      sync.Mutex
	day     time.Time     // of the last look
	elapsed time.Duration // at the last look
	until   time.Duration // the doubt ends, as elapsed time
}

// ClockDoubt returns a function that reports whether this machine's clock is doubted now.
func ClockDoubt() (doubted func() bool) { return newClockDoubt(machineClock(), timesyncd).doubted }

// doubtTime is how long a clock is doubted.
const doubtTime = 24 * time.Hour

func newClockDoubt(read clock, synced func() bool) *clockDoubt {
	d := &clockDoubt{read: read, synced: synced}
	d.day, d.elapsed = read()
	d.until = d.elapsed
	return d
}

// doubted reports whether the clock is doubted now.
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

// The directory that systemd-timesyncd has while it runs, and the file it makes when it
// has set the clock for the first time since the machine was started
// (systemd-timesyncd.service(8)).
const (
	timesyncDir  = "/run/systemd/timesync"
	timesyncDone = timesyncDir + "/synchronized"
)

// timesyncd reports whether systemd-timesyncd has set the clock, or is not there.
func timesyncd() bool {
	if _, err := os.Stat(timesyncDir); err != nil {
		return true
	}
	_, err := os.Stat(timesyncDone)
	return err == nil
}
