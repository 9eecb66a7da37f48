package datastore

import (
	"fmt"
	"time"
)

// wakeCommitter tells the committer that there is something to do.
func (e *Engine) wakeCommitter() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// run is the committer: the only goroutine that writes to the disk and the only
// one that publishes. While it waits for the disk, the next batch gathers; when
// there is nothing to do it blocks on a channel, with no timer.
func (e *Engine) run() {
	defer close(e.stopped)
	var syncDue, writeDue <-chan time.Time
	for e.Err() == nil { // asked after every step that may fail: nothing is acknowledged after a failure
		b, closing := e.take()
		if b == nil && e.Err() != nil {
			break // a panic of a caller
		}
		if b == nil && closing {
			e.writeLate()
			return
		}
		if b != nil {
			if e.finish(b, e.commit(b)); e.Err() != nil {
				continue
			}
			if len(e.late) == 0 {
				writeDue = nil // what is due is of heartbeats that are yet to come
			} else if writeDue == nil {
				writeDue = time.After(e.opts.HeartbeatInterval)
			}
		}
		if e.unsynced && syncDue == nil {
			syncDue = time.After(e.opts.SyncInterval)
		}
		worked := e.maintain(b == nil)
		if worked || b != nil || e.Err() != nil {
			select {
			case <-syncDue: // also while there is always more to do
				syncDue = nil
				e.sync()
			case <-writeDue:
				writeDue = nil
				e.writeLate()
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
			if e.writeLate(); len(e.late) > 0 {
				writeDue = time.After(e.opts.HeartbeatInterval)
			}
		}
	}
	e.abandon()
}

// take seals the pending batch.
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
	b.state = e.spec.copy()
	e.pending, e.inflight = nil, b
	close(e.room)
	e.room = make(chan struct{})
	return b, false
}

// commit makes a batch durable.
func (e *Engine) commit(b *batch) error {
	if e.disk == nil {
		return nil
	}
	begin := time.Now()
	if e.opts.Durability == Relaxed {
		if err := e.reserve(b.state.revision); err != nil {
			return err
		}
		if e.isHeartbeat(b) {
			e.late, b.late = append(e.late, b.rows...), true
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

// reservation is how many revisions of mode Relaxed one durable commit reserves.
const reservation = 20000

// reserve makes sure that revision, when it is lost in a crash, is never given
// out again.
func (e *Engine) reserve(revision int64) error {
	if revision <= e.reserved {
		return nil
	}
	next := revision + reservation
	if err := e.disk.setMeta(meta{"reserved", next}); err != nil {
		return err
	}
	if err := e.disk.sync(); err != nil {
		return err
	}
	e.reserved = next
	return nil
}

// sync bounds what mode Relaxed can lose.
func (e *Engine) sync() {
	if e.Err() != nil {
		return
	}
	e.unsynced = false
	if err := e.disk.sync(); err != nil {
		e.fail(fmt.Errorf("sync: %w", err))
	}
}

// finish publishes a committed batch, or undoes one that certainly is not
// committed, and answers its callers.
func (e *Engine) finish(b *batch, err error) {
	switch {
	case err == nil:
		e.publish(b)
	case isFull(err):
		if b.puts {
			e.ballast.release(err)
		} else {
			e.makeRoom(err)
		}
		b.err = ErrNoSpace
		e.undo(b)
	case isBusy(err):
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

// publish makes a durable batch visible: first to readers, then to watchers;
// its callers are answered after that.
func (e *Engine) publish(b *batch) {
	if !b.late {
		e.commits.Add(1)
	}
	old := e.snap.Load()
	next := &snapshot{view: b.state, compacted: old.compacted, ring: old.ring.append(b.rows)}
	if !b.late {
		e.cache.add(b.rows...)
	}
	var late []*version
	for _, v := range b.rows {
		if p := v.prev.Load(); p != nil {
			late = append(late, p)
		}
		if e.disk != nil {
			e.account(v, +1)
		}
	}
	if len(late) > 0 {
		e.cache.retire(late...)
	}
	if b.compact > old.compacted {
		next.compacted = b.compact
		end := next.ring.seek(b.compact + 1)
		e.garbage.add(next.ring, end, b.compact)
		e.backlog.Add(int64(end - next.ring.first))
		next.ring = next.ring.cut(next.ring.seek(b.compact))
	}
	e.snap.Store(next)
	e.watchers.notify(next, uint64(len(b.rows)))
}

// rowSum spreads an id over 64 bits, so that a sum of them tells two sets of rows
// apart (the finalizer of MurmurHash3).
func rowSum(id int64) int64 {
	x := uint64(id)
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return int64(x ^ x>>33)
}

// account keeps the figures that a clean stop records.
func (e *Engine) account(v *version, sign int64) {
	e.rows += sign
	e.sum += sign * rowSum(v.id)
}

// undo goes back to the durable state after a batch that was not committed, and
// sends everyone who built on it to evaluate again.
func (e *Engine) undo(b *batch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	snap := e.snap.Load()
	e.spec = snap.view.copy()
	e.compacted = snap.compacted
	later := e.pending
	e.pending = nil
	if later != nil {
		e.leases.undo(later.leases)
		later.err = errRetry
		close(later.done)
		close(e.room)
		e.room = make(chan struct{})
	}
	e.leases.undo(b.leases)
	e.leases.attachAll(snap.live)
}

// abandon answers those who still wait after a failure.
func (e *Engine) abandon() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b := e.pending; b != nil {
		e.pending = nil
		b.err = e.fatal
		close(b.done)
	}
	close(e.room)
	e.room = make(chan struct{})
}
