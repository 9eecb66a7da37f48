package datastore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// EventType says what happened to a key.
type EventType int

// A key was put, or deleted.
const (
	EventPut EventType = iota
	EventDelete
)

// Event is one change of one key.
type Event struct {
	Type EventType
	KV   KeyValue  // of a deletion, only Key and ModRevision
	Prev *KeyValue // what the key was before, if asked for; nil if it was not there or is compacted
}

// IsCreate tells whether the key was not there before.
func (e *Event) IsCreate() bool {
	return e.Type == EventPut && e.KV.CreateRevision == e.KV.ModRevision
}

// WatchRequest names the keys to watch and where to begin.
type WatchRequest struct {
	Key, End      string
	StartRevision int64 // first revision to see; 0 is the next one
	PrevKV        bool  // fill in Event.Prev

	// Wake is for a watcher that is read by Poll: it is called once after Poll
	// has said that there is no more, as soon as there is, or the watch ends.
	// It must not block, nor call the engine.
	Wake func()
}

// WatchResponse is a piece of history: every change of the range that follows
// the response before it, up to and including Revision.
type WatchResponse struct {
	Revision int64
	Events   []Event // in order; a revision is never split over two responses
}

// Watcher is a cursor on the history of a range. It holds no events and no
// goroutine: a slow one costs others nothing, and what it has not read by the
// time it is compacted is lost to it ([ErrCompacted]). Next and Poll must not be
// called by two goroutines at once; the other methods may be called at any time.
type Watcher struct {
	e      *Engine
	group  *watchGroup
	opened int64 // revision of the store when it was opened
	start  int64
	prev   bool
	pos    atomic.Uint64 // next position of the ring to look at
	ask    atomic.Bool   // a progress response is wanted
	closed atomic.Bool
	wake   chan struct{} // of capacity 1; sent to when it stops being parked
	woken  func()        // called instead, if set
}

// What bounds a response, except that it never splits a revision: events, and the
// bytes of their values.
const (
	watchEvents = 1000
	watchBytes  = 4 << 20
)

// Watch opens a cursor. A start before the compaction revision is
// [ErrCompacted]; one in the future waits for it. Close it in the end.
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

// Opened is the revision of the store when the watch was opened. A watch without a
// start begins with the one after it.
func (w *Watcher) Opened() int64 { return w.opened }

// Next waits for changes and answers them. With no change it answers only to
// [Watcher.RequestProgress], with no events. It ends with ctx's error (and can be
// called again), with ErrCompacted when the cursor was overtaken, and with
// [ErrClosed] after Close of the watcher or the engine.
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

// Poll is [Watcher.Next] without the wait, so that one goroutine can read many
// watchers: the response is nil if there is none. Where there is no more, the
// watch rests until WatchRequest.Wake is called; otherwise Poll is to be called
// again, when the response has been dealt with.
func (w *Watcher) Poll() (resp *WatchResponse, more bool, err error) {
	return w.PollTo(math.MaxInt64)
}

// PollTo is [Watcher.Poll] that looks at no revision after last. More is true where
// there are such revisions: then the watch does not rest, and Wake is not called.
func (w *Watcher) PollTo(last int64) (resp *WatchResponse, more bool, err error) {
	if resp, err = w.read(last); err != nil {
		return nil, false, err
	}
	return resp, !w.e.watchers.park(w, w.pos.Load()), nil
}

// read returns what there is up to a revision: events, a progress that was asked
// for, or nil.
func (w *Watcher) read(last int64) (*WatchResponse, error) {
	if w.closed.Load() {
		return nil, ErrClosed
	}
	ask := w.ask.Swap(false) // before the snapshot: the answer is at least the revision of the request
	resp, err := w.scan(w.e.snap.Load(), last)
	switch {
	case err != nil:
		return nil, err
	case len(resp.Events) > 0:
		if ask {
			w.ask.Store(true) // to be answered when there are no more
		}
		return resp, nil
	case ask:
		return resp, nil
	}
	return nil, nil
}

// scan reads from the cursor to the end of snap or of revision end, or until there
// is enough.
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

// event makes the event of a change, with values re-read if memory has let go
// of them.
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
	// A change of the compaction revision itself stays; what it replaced is gone.
	if p := v.before(); p != nil && v.Revision() > w.e.CompactRevision() {
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

// explain tells a row that compaction took from one that is lost.
func (w *Watcher) explain(v *version, err error) error {
	if !errors.Is(err, sqlitefile.ErrRowMissing) {
		return err
	}
	if v.Revision() <= w.e.CompactRevision() {
		return w.e.compactedError(v.Revision())
	}
	return fmt.Errorf("%w: %s: row %d is missing (restore a backup)", ErrCorrupt, w.e.path, v.ID)
}

// RequestProgress makes the present or next Next answer as soon as the cursor has
// reached the newest revision, never before the events up to it, even when there
// are none.
func (w *Watcher) RequestProgress() {
	w.ask.Store(true)
	w.e.watchers.unpark(w)
}

// WaitFor waits until the store's revision is at least revision. No timer runs
// meanwhile; the next change wakes it.
func (e *Engine) WaitFor(ctx context.Context, revision int64) error {
	if e.Revision() >= revision {
		return nil
	}
	woken := make(chan struct{}, 1)
	wake := func() {
		select {
		case woken <- struct{}{}:
		default:
		}
	}
	w, err := e.Watch(WatchRequest{Key: allKeys, End: allKeys, StartRevision: revision, Wake: wake})
	if errors.Is(err, ErrCompacted) {
		return nil // it has come and gone meanwhile
	}
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		// Nothing at or after revision is read: if there is something, this ends.
		_, more, err := w.PollTo(revision - 1)
		if err != nil {
			return err
		}
		if e.Revision() >= revision {
			return nil
		}
		if more {
			continue
		}
		select {
		case <-woken:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close ends the watch and a Next that waits in it.
func (w *Watcher) Close() {
	w.closed.Store(true)
	w.e.watchers.remove(w)
}
