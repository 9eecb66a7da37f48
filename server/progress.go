package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/karve-k8s/karve/server/lifecycle"
	"github.com/karve-k8s/karve/server/notify"
)

// How often a start that goes on reports its progress, and how long systemd lets it be silent
// then. A board can read a database for minutes. Without reports, systemd would kill the start
// after TimeoutStartSec= and repeat it, for ever. It does kill a start that makes no progress.
const (
	progressEvery  = 5 * time.Second
	progressExtend = 90 * time.Second
)

// progress reports to the user and systemd what a start does.
type progress struct {
	systemd *notify.Notifier
	tell    func(Progress) // nil: the user does not want to know
	now     func() time.Time

	mu    sync.Mutex
	parts []startingPart // not ready yet, the first one first
	last  time.Time      // when systemd was told, or the start began
	doing string
}

type startingPart struct {
	name  string
	since time.Time
}

func newProgress(systemd *notify.Notifier, tell func(Progress), now func() time.Time) *progress {
	return &progress{systemd: systemd, tell: tell, now: now, last: now()}
}

// of makes the start of a part known to p.
func (p *progress) of(part lifecycle.Part) lifecycle.Part {
	run := part.Run
	part.Run = func(ctx context.Context, ready func()) error {
		p.mu.Lock()
		p.parts = append(p.parts, startingPart{part.Name, p.now()})
		p.mu.Unlock()
		return run(ctx, func() {
			p.mu.Lock()
			p.parts = slices.DeleteFunc(p.parts, func(s startingPart) bool { return s.name == part.Name })
			p.mu.Unlock()
			ready()
		})
	}
	return part
}

// run reports to the user every few seconds until ctx ends.
func (p *progress) run(ctx context.Context) {
	if p.tell == nil {
		return
	}
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if at, ok := p.at(); ok {
			p.tell(at)
		}
	}
}

// at is how far the start is, unless every part that has been started is ready.
func (p *progress) at() (Progress, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.parts) == 0 {
		return Progress{}, false
	}
	at := Progress{Part: p.parts[0].name, For: p.now().Sub(p.parts[0].since)}
	if at.Part == datastorePart {
		at.Doing = p.doing
	}
	return at, true
}

// report is called by the datastore when something has been done.
func (p *progress) report(what string, done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if total > 0 {
		what += fmt.Sprintf(": %d%%", 100*done/total)
	}
	p.doing = what
	if p.now().Sub(p.last) < progressEvery {
		return
	}
	p.last = p.now()
	_ = p.systemd.ExtendTimeout(progressExtend) // systemd that cannot be reached kills nothing
	_ = p.systemd.Status(what)
}

// status is called by the datastore when the start waits for something.
func (p *progress) status(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doing = text
	_ = p.systemd.Status(text)
}
