package datastore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// EventType is what has happened to a key.
type EventType int

// Types of events.
const (
	EventPut EventType = iota
	EventDelete
)

// Event is one change of one key.
type Event struct {
	Type EventType
	KV   KeyValue  // for a deletion, Key and ModRevision only
	Prev *KeyValue // the key before, if asked for; nil if it did not exist or is compacted
}

// IsCreate reports whether the event has created the key.
func (e *Event) IsCreate() bool {
	return e.Type == EventPut && e.KV.CreateRevision == e.KV.ModRevision
}

// WatchRequest names the keys to watch and where to begin.
type WatchRequest struct {
	Key, End      string
	StartRevision int64 // first revision to see; 0 is the next one
	PrevKV        bool  // set Event.Prev

	// Wake is for a watcher that is read with Poll. After Poll has returned that there is no more, Wake is
	// called once, as soon as there is more or the watch ends. It must not block or call the engine.
	Wake func()
}

// WatchResponse has every change of the range after the previous response, up to and including Revision.
type WatchResponse struct {
	Revision int64
	Events   []Event // in order; a revision is never split over two responses
}

// Watcher is a cursor in the history of a range. It has no events and no goroutine, so a slow watcher costs
// others nothing. Compaction can overtake a watcher that does not read; it then gets [ErrCompacted]. Two
// goroutines must not call Next or Poll at the same time. The other methods may be called at any time.
type Watcher struct {
	e      *Engine
	group  *watchGroup
	opened int64 // revision of the store when it was opened
	start  int64
	prev   bool
	pos    atomic.Uint64 // next position in the history to read
	ask    atomic.Bool   // a progress response is wanted
	closed atomic.Bool
	wake   chan struct{} // capacity 1; receives when the watcher stops being parked
	woken  func()        // called instead, if set
}

// Bounds of a response, which never splits a revision: number of events and bytes of their values.
const (
	watchEvents = 1000
	watchBytes  = 4 << 20
)

// Watch opens a watcher. The error is [ErrCompacted] for a start before the compaction revision; a start in the
// future is waited for. Close the watcher in the end.
func (e *Engine) Watch(req WatchRequest) (*Watcher, error) {
	if req.Key == "" {
		return nil, ErrEmptyKey
	}
	snap := e.snap.Load()
	w := &Watcher{e: e, opened: snap.revision, start: req.StartRevision, prev: req.PrevKV, wake: make(chan struct{}, 1), woken: req.Wake}
	if w.start <= 0 {
		w.start = snap.revision + 1
	}
	if w.start < snap.compacted {
		return nil, e.compactedError(w.start)
	}
	w.pos.Store(snap.history.seek(w.start))
	if err := e.watchers.add(w, req.Key, req.End); err != nil {
		return nil, err
	}
	return w, nil
}

// Opened returns the revision of the store when the watch was opened. A watch without a start revision begins
// with the next one.
func (w *Watcher) Opened() int64 { return w.opened }

// Next waits for changes and returns them. Without a change it returns only after [Watcher.RequestProgress], with
// no events. The error is ctx's if ctx ends, and Next can then be called again; [ErrCompacted] if compaction has
// overtaken the watcher; and [ErrClosed] after Close of the watcher or the engine.
func (w *Watcher) Next(ctx context.Context) (*WatchResponse, error) {
	for {
		if err := ctx.Err(); err != nil && !w.closed.Load() {
			return nil, err
		}
		resp, err := w.read(math.MaxInt64)
		if resp != nil || err != nil {
			return resp, err
		}
		if !w.e.watchers.park(w, w.pos.Load()) {
			continue
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			w.e.watchers.unpark(w)
			return nil, ctx.Err()
		}
	}
}

// Poll is [Watcher.Next] without waiting, so that one goroutine can read many watchers. The response is nil if
// there is none. If more is true, call Poll again when you have handled the response. Otherwise the watcher is
// parked until WatchRequest.Wake is called.
func (w *Watcher) Poll() (resp *WatchResponse, more bool, err error) {
	return w.PollTo(math.MaxInt64)
}

// PollTo is [Watcher.Poll] for revisions up to last. If there are later ones, more is true: the watcher is not
// parked, and Wake is not called.
func (w *Watcher) PollTo(last int64) (resp *WatchResponse, more bool, err error) {
	if resp, err = w.read(last); err != nil {
		return nil, false, err
	}
	return resp, !w.e.watchers.park(w, w.pos.Load()), nil
}

// read returns what there is up to a revision: events, a requested progress response, or nil.
func (w *Watcher) read(last int64) (*WatchResponse, error) {
	if w.closed.Load() {
		return nil, ErrClosed
	}
	ask := w.ask.Swap(false) // before the snapshot is loaded: it must be as new as the request
	resp, err := w.scan(w.e.snap.Load(), last)
	switch {
	case err != nil:
		return nil, err
	case len(resp.Events) > 0:
		if ask {
			w.ask.Store(true) // for a response when there are no more events
		}
		return resp, nil
	case ask:
		return resp, nil
	}
	return nil, nil
}

// scan reads from the cursor to the end of snap or of the revision end, or until the response is full.
func (w *Watcher) scan(snap *snapshot, end int64) (*WatchResponse, error) {
	resp := &WatchResponse{Revision: min(snap.revision, end)}
	pos := w.pos.Load()
	r := snap.history
	if pos < r.first {
		if w.start < snap.compacted {
			return nil, w.e.compactedError(snap.compacted - 1)
		}
		pos = r.first
	}
	var last, size int64
	for ; pos < r.next; pos++ {
		v := r.at(pos)
		if v.Revision() > end {
			break
		}
		if v.Revision() < w.start || !inRange(v.Key, w.group.key, w.group.end) {
			continue
		}
		if (len(resp.Events) >= watchEvents || size >= watchBytes) && v.Revision() != last {
			resp.Revision = last
			break
		}
		last, size = v.Revision(), size+int64(v.size)
		event, err := w.event(v)
		if err != nil {
			return nil, err
		}
		resp.Events = append(resp.Events, event)
	}
	w.pos.Store(pos)
	return resp, nil
}

// event makes the event of a change. It reads values that are not in memory any more.
func (w *Watcher) event(v *version) (Event, error) {
	event := Event{Type: EventPut, KV: v.header()}
	if v.Tombstone() {
		event = Event{Type: EventDelete, KV: KeyValue{Key: v.Key, ModRevision: v.Revision()}}
	} else {
		value, err := w.e.value(v)
		if err != nil {
			return event, w.explain(v, err)
		}
		event.KV.Value = value
	}
	if !w.prev {
		return event, nil
	}
	// A change of the compaction revision itself is kept; what it has replaced is not.
	if p := v.replaced(); p != nil && v.Revision() > w.e.CompactRevision() {
		value, err := w.e.value(p)
		if err != nil {
			return event, w.explain(v, err)
		}
		kv := p.header()
		kv.Value = value
		event.Prev = &kv
	}
	return event, nil
}

// explain distinguishes a row that compaction has deleted from one that is lost.
func (w *Watcher) explain(v *version, err error) error {
	if !errors.Is(err, sqlitefile.ErrRowMissing) {
		return err
	}
	if v.Revision() <= w.e.CompactRevision() {
		return w.e.compactedError(v.Revision())
	}
	return fmt.Errorf("%w: %s: row %d is missing (restore a backup)", ErrCorrupt, w.e.path, v.ID)
}

// RequestProgress makes the present or next call of Next return as soon as the watcher has reached the newest
// revision, even without events. Events up to that revision come first.
func (w *Watcher) RequestProgress() {
	w.ask.Store(true)
	w.e.watchers.unpark(w)
}

// WaitFor waits until the revision of the store is at least revision. It uses no timer: changes wake it.
func (e *Engine) WaitFor(ctx context.Context, revision int64) error {
	return e.waitUntil(ctx, &e.published, func() bool { return e.Revision() >= revision })
}

// Close ends the watch, and a call of Next that waits in it.
func (w *Watcher) Close() {
	w.closed.Store(true)
	w.e.watchers.remove(w)
}

// signal wakes goroutines that wait for the committer. While nobody waits, it has no channel.
type signal struct {
	mu   sync.Mutex
	next chan struct{}
}

// wait returns a channel that the next call of fire closes.
func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = make(chan struct{})
	}
	return s.next
}

func (s *signal) fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		close(s.next)
		s.next = nil
	}
}

// waitUntil waits until done returns true. changed fires whenever that may be so.
func (e *Engine) waitUntil(ctx context.Context, changed *signal, done func() bool) error {
	for {
		next := changed.wait()
		if done() {
			return nil
		}
		select {
		case <-next:
		case <-e.stopped:
			return ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
