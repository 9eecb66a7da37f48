package inprocess

import (
	"context"
	"sync"
	"time"
)

// notify sends notifications until the endpoint is closed. An interval after a write,
// it requests progress of the watches that asked for notifications, so each answers after its
// events. Without notifications, the resourceVersion of a type without changes would be
// compacted under its watchers. told is the revision at the start.
//
// A timer runs only after a write, and only while such a watch exists. Watches of the etcd API
// get their notifications here too, if the API wants it.
// notify asks a store again that was away.
func (e *Endpoint) notify(told int64) {
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

// interest counts the watches that want notifications.
type interest struct {
	mu   sync.Mutex
	n    int
	some chan struct{} // closed while n > 0
}

func newInterest() interest { return interest{some: make(chan struct{})} }

func (i *interest) add(delta int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	before := i.n
	i.n += delta
	switch {
	case before == 0 && i.n > 0:
		close(i.some)
	case before > 0 && i.n == 0:
		i.some = make(chan struct{})
	}
}

// wait waits until there is such a watch. It returns false when ctx ends.
func (i *interest) wait(ctx context.Context) bool {
	i.mu.Lock()
	some := i.some
	i.mu.Unlock()
	select {
	case <-some:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
