package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/karve-k8s/karve/server/lifecycle"
)

// progressEvery is the interval between reports of a startup's progress. progressExtend is how long
// systemd waits for the next report. A slow board can take minutes to read a database. Without
// reports, systemd would kill the server after TimeoutStartSec= and start it again, for ever. It
// still kills a startup that makes no progress.
const (
	progressEvery  = 5 * time.Second
	progressExtend = 90 * time.Second
)

// progress reports to the user and to systemd what a startup is doing.
type progress struct {
	systemd *lifecycle.Systemd
	tell    func(Progress) // may be nil
	now     func() time.Time
	reason  func(part string) error // what blocks a part; may be nil

	mu    sync.Mutex
	parts []startingPart // those that are not ready yet, in the order in which they started
	last  time.Time      // the last report to systemd, or the beginning of the startup
	doing string
	over  bool // a shutdown has begun
}

type startingPart struct {
	name  string
	since time.Time
}

func newProgress(systemd *lifecycle.Systemd, tell func(Progress), now func() time.Time) *progress {
	return &progress{systemd: systemd, tell: tell, now: now, last: now()}
}

// of returns the part with its startup tracked by p.
func (p *progress) of(part lifecycle.Part) lifecycle.Part {
	run := part.Run
	part.Run = func(ctx context.Context, ready func()) error {
		p.mu.Lock()
		p.parts = append(p.parts, startingPart{part.Name, p.now()})
		p.mu.Unlock()
		started := func() {
			p.mu.Lock()
			p.parts = slices.DeleteFunc(p.parts, func(s startingPart) bool { return s.name == part.Name })
			p.mu.Unlock()
		}
		defer started() // or failed
		return run(ctx, func() {
			started()
			ready()
		})
	}
	return part
}

// end ends the reports to the user.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
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

// at returns the progress of the startup, or false if every part that has started is ready
// or has ended, or a shutdown has begun.
func (p *progress) at() (Progress, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || len(p.parts) == 0 {
		return Progress{}, false
	}
	at := Progress{Part: p.parts[0].name, For: p.now().Sub(p.parts[0].since)}
	if at.Part == datastorePart {
		at.Doing = p.doing
	} else if p.reason != nil {
		if err := p.reason(at.Part); err != nil {
			at.Doing = err.Error()
		}
	}
	return at, true
}

// report records progress. The datastore calls it.
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
	_ = p.systemd.ExtendTimeout(progressExtend) // if systemd cannot be reached, it does not kill this process either
	_ = p.systemd.Status(what)
}

// status records what the startup waits for. The datastore calls it.
func (p *progress) status(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doing = text
	_ = p.systemd.Status(text)
}
