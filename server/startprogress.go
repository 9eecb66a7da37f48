package server

import (
	"fmt"
	"sync"
	"time"

	"github.com/karve-k8s/karve/server/notify"
)

// How long a start goes on before systemd is told of its progress, how often that is, and
// how long it may be silent then. A board's start can read a database for minutes: without
// word of it, systemd kills it after TimeoutStartSec= and starts it again, for ever. A start
// that makes no progress is still killed.
const (
	progressEvery  = 5 * time.Second
	progressExtend = 90 * time.Second
)

// startProgress hands the datastore's progress to systemd.
type startProgress struct {
	systemd *notify.Notifier
	now     func() time.Time

	mu   sync.Mutex
	last time.Time // when systemd was told, or the start began
}

func newStartProgress(systemd *notify.Notifier, now func() time.Time) *startProgress {
	return &startProgress{systemd: systemd, now: now, last: now()}
}

// report is told that something has been done.
func (p *startProgress) report(what string, done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now().Sub(p.last) < progressEvery {
		return
	}
	p.last = p.now()
	if total > 0 {
		what += fmt.Sprintf(": %d%%", 100*done/total)
	}
	_ = p.systemd.ExtendTimeout(progressExtend) // systemd that cannot be reached kills nothing
	_ = p.systemd.Status(what)
}
