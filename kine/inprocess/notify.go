package inprocess

import (
	"context"
	"sync"
	"time"
)

// Notify tells the watches that asked for it the revision, an interval after it has
// moved, until the context of [Register] ends. told is the revision at the start: without that, the resourceVersion of a resource where nothing happens would
// be compacted under its watchers. A timer runs only after a write, and only while
// there is such a watch. Each cursor answers for itself, after its events.
//
// On a socket our own API does the same when it is told to; kine's bridge has its own
// timer. A backend that is away for a while is asked again.
func (e *Endpoint) Notify(told int64) {
	for e.interest.wait(e.ctx) {
		e.store.WaitFor(e.ctx, told+1)
		select {
		case <-time.After(e.interval):
		case <-e.ctx.Done():
			return
		}
		revision, err := e.store.CurrentRevision(e.ctx)
		if err != nil || revision <= told {
			continue
		}
		told = revision
		if api, ok := e.api.(notifier); ok {
			api.Notify()
		}
		e.mu.Lock()
		for w := range e.notified {
			if w.told.Load() < revision {
				w.cursor.RequestProgress()
			}
		}
		e.mu.Unlock()
	}
}

// interest counts the watches that want to be notified.
type interest struct {
	mu  sync.Mutex
	n   int
	any chan struct{} // closed while there are some
}

func newInterest() interest { return interest{any: make(chan struct{})} }

func (i *interest) add(delta int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	before := i.n
	i.n += delta
	switch {
	case before == 0 && i.n > 0:
		close(i.any)
	case before > 0 && i.n == 0:
		i.any = make(chan struct{})
	}
}

// wait waits until there is such a watch; false is the end of ctx.
func (i *interest) wait(ctx context.Context) bool {
	i.mu.Lock()
	some := i.any
	i.mu.Unlock()
	select {
	case <-some:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
