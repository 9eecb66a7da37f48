package datastore

import (
	"fmt"
	"time"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// wakeCommitter wakes the committer, because there is something to do.
func (e *Engine) wakeCommitter() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// run is the committer, the only goroutine that writes to the disk and publishes. While it waits for
// the disk, the next batch gathers. With nothing to do it blocks on a channel and has no timer.
func (e *Engine) run() {
	defer close(e.stopped)
	var syncDue, writeDue <-chan time.Time
	for e.Err() == nil { // checked after every step that may fail: nothing is acknowledged after a failure
		b, closing := e.take()
		if b == nil && e.Err() != nil {
			break // a caller has panicked
		}
		if b == nil && closing {
			e.stopDeferred()
			return
		}
		if b != nil {
			if e.finish(b, e.commit(b)); e.Err() != nil {
				continue
			}
			if len(e.deferred) == 0 {
				writeDue = nil // the next deferred batch sets it again
			} else if writeDue == nil {
				writeDue = time.After(e.opts.deferredInterval)
			}
		}
		if e.unsynced && syncDue == nil {
			syncDue = time.After(e.opts.syncInterval)
		}
		worked := e.maintain(b == nil)
		if worked || b != nil || e.Err() != nil {
			select {
			case <-syncDue: // even if there is always more to do
				syncDue = nil
				e.sync()
			case <-writeDue:
				writeDue = nil
				e.writeDeferred()
			default:
			}
			continue
		}
		select {
		case <-e.wake:
		case <-syncDue:
			syncDue = nil
			e.sync()
		case <-writeDue:
			writeDue = nil
			if e.writeDeferred(); len(e.deferred) > 0 {
				writeDue = time.After(e.opts.deferredInterval)
			}
		}
	}
	e.abandon()
}

// take takes the pending batch, to which nothing is added any more.
func (e *Engine) take() (b *batch, closing bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	b = e.pending
	if e.fatal != nil {
		return nil, false // a panic has left it half changed
	}
	if b == nil {
		return nil, e.closing
	}
	b.state = e.spec.clone()
	e.pending, e.inflight = nil, b
	close(e.taken)
	e.taken = make(chan struct{})
	return b, false
}

// commit writes a batch, or defers it.
func (e *Engine) commit(b *batch) error {
	if e.file == nil {
		return nil
	}
	begin := time.Now()
	if e.opts.Durability == Relaxed {
		if err := e.reserve(b.state.revision); err != nil {
			return err
		}
		if e.mayDefer(b) {
			e.deferred, b.deferred = append(e.deferred, b.rows...), true
			return nil
		}
	}
	if err := e.write(b); err != nil {
		return err
	}
	if e.opts.OnCommit != nil {
		e.opts.OnCommit(Commit{Rows: len(b.rows), Duration: time.Since(begin)})
	}
	return nil
}

// reservation is the number of revisions that one durable commit of mode Relaxed reserves.
const reservation = 20000

// reserve makes sure that a revision that is lost in a crash is never used again.
func (e *Engine) reserve(revision int64) error {
	if revision <= e.reserved {
		return nil
	}
	next := revision + reservation
	if err := e.file.SetMetas(sqlitefile.Metas{"reserved": next}); err != nil {
		return err
	}
	if err := e.file.Sync(); err != nil {
		return err
	}
	e.reserved = next
	return nil
}

// sync makes what mode Relaxed has committed durable.
func (e *Engine) sync() {
	if e.Err() != nil {
		return
	}
	e.unsynced = false
	if err := e.file.Sync(); err != nil {
		e.fail(fmt.Errorf("sync: %w", err))
	}
}

// finish publishes a committed batch, or undoes one that is certainly not committed, and answers its
// callers.
func (e *Engine) finish(b *batch, err error) {
	switch {
	case err == nil:
		e.publish(b)
	case sqlitefile.IsFull(err):
		if b.puts {
			e.ballast.Release(err)
		} else {
			e.ballast.Give(err)
		}
		b.err = ErrNoSpace
		e.undo(b)
	case sqlitefile.IsBusy(err):
		b.err = err
		e.undo(b)
	default:
		b.err = e.fail(err)
	}
	e.mu.Lock()
	e.inflight = nil
	e.mu.Unlock()
	close(b.done)
}

// publish makes a durable batch visible, first to readers and then to watchers. Its callers are answered
// after that.
func (e *Engine) publish(b *batch) {
	if !b.deferred {
		e.commits.Add(1)
	}
	old := e.snap.Load()
	next := &snapshot{index: b.state, compacted: old.compacted, history: old.history.append(b.rows)}
	if !b.deferred {
		e.cache.add(b.rows...)
	}
	var superseded []*version
	for _, v := range b.rows {
		if p := v.prev.Load(); p != nil {
			superseded = append(superseded, p)
		}
	}
	if len(superseded) > 0 {
		e.cache.retire(superseded...)
	}
	if b.compact > old.compacted {
		next.compacted = b.compact
		end := next.history.seek(b.compact + 1)
		e.garbage.add(next.history, end, b.compact)
		e.backlog.Add(int64(end - next.history.first))
		next.history = next.history.cut(next.history.seek(b.compact))
	}
	e.snap.Store(next)
	e.watchers.notify(next, uint64(len(b.rows)))
	e.published.fire()
}

// undo goes back to the durable state after a batch that was not committed. Every transaction that was
// evaluated after it is evaluated again.
func (e *Engine) undo(b *batch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	snap := e.snap.Load()
	e.spec = snap.index.clone()
	e.compacted = snap.compacted
	later := e.pending
	e.pending = nil
	if later != nil {
		e.leases.undo(later.leases)
		later.err = errRetry
		close(later.done)
		close(e.taken)
		e.taken = make(chan struct{})
	}
	e.leases.undo(b.leases)
	e.leases.attachAll(snap.live)
}

// abandon answers the callers that still wait after a failure.
func (e *Engine) abandon() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b := e.pending; b != nil {
		e.pending = nil
		b.err = e.fatal
		close(b.done)
	}
	close(e.taken)
	e.taken = make(chan struct{})
}
