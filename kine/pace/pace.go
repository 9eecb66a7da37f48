// Package pace delays watches that are opened again and again.
package pace

import (
	"sync"
	"time"
)

// Interval is the time between two watches of the same history. etcd sends the history of a watch up to
// 100 ms after it was opened (watchResyncPeriod in server/storage/mvcc/watchable_store.go), and upstream
// relies on that: a reflector that cannot decode an event opens its watch again at once, for 30
// seconds (k8s.io/client-go/tools/cache/reflector.go).
const Interval = 100 * time.Millisecond

// expire is the number of entries from which on old ones are removed.
const expire = 64

// Watches are those of a store that were opened lately. The zero value is that of none.
type Watches struct {
	mu     sync.Mutex
	latest map[history]time.Time // when a watch of it was, or will be, sent its events
}

// history is what a watch is sent first.
type history struct {
	key, end string
	start    int64
}

// Hold returns how long the events of a watch have to wait, because another one began at the same
// revision of the same range less than [Interval] ago. Watches that are opened while one waits wait as long as
// that one, so that many clients are not served one after the other.
func (w *Watches) Hold(key, end string, start int64) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, of := time.Now(), history{key, end, start}
	due := now
	if last, ok := w.latest[of]; ok {
		if next := last.Add(Interval); last.After(now) {
			due = last
		} else if next.After(now) {
			due = next
		}
	}
	if w.latest == nil {
		w.latest = map[history]time.Time{}
	}
	if len(w.latest) >= expire {
		for h, last := range w.latest {
			if now.Sub(last) > Interval {
				delete(w.latest, h)
			}
		}
	}
	w.latest[of] = due
	return due.Sub(now)
}
