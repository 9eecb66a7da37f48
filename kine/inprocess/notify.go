package inprocess

import "time"

// notify sends notifications until the endpoint is closed. An interval after a write,
// it requests progress of the watches that asked for notifications, so each answers after its
// events. Without notifications, the resourceVersion of a type without changes would be
// compacted under its watchers. told is the revision at the start.
//
// A timer runs only after a write. Watches of the etcd API get their notifications here too, if the
// API wants it. A store that is away is asked again after the interval.
func (e *Endpoint) notify(told int64) {
	for {
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
