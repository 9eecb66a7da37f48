package datastore

import (
	"slices"
	"strings"
	"time"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Some updates only say that their writer is still alive, such as the lease that a node renews every ten
// seconds. In an idle cluster nothing else is written, and each commit writes whole pages. In mode Relaxed
// such updates are published immediately and written later, together: after a minute at the
// latest, and before anything else is written. If a kill loses them, the next update says the same.
// Their revisions are reserved, like all revisions of mode Relaxed, so none is used twice.

// mayDefer reports whether a batch consists of such updates.
func (e *Engine) mayDefer(b *batch) bool {
	if e.opts.DeferredPrefix == "" || len(b.leases) > 0 || b.compact > 0 || len(e.deferred)+len(b.rows) > batchRows {
		return false
	}
	for _, v := range b.rows {
		if v.Tombstone() || v.Version == 1 || v.Lease != 0 || !strings.HasPrefix(v.Key, e.opts.DeferredPrefix) {
			return false
		}
	}
	return true
}

// write commits a batch, after the deferred rows.
func (e *Engine) write(b *batch) error {
	all := *b
	all.rows = slices.Concat(e.deferred, b.rows)
	if err := e.file.Commit(all.forDisk()); err != nil {
		return err
	}
	e.cache.add(e.deferred...) // not earlier: an evicted value must be on the disk
	e.deferred = nil
	e.unsynced = e.opts.Durability == Relaxed
	return nil
}

// writeDeferred writes the deferred rows. If the disk is full or busy, they wait for the next time.
func (e *Engine) writeDeferred() error {
	if len(e.deferred) == 0 || e.Err() != nil {
		return e.Err()
	}
	begin, rows := time.Now(), len(e.deferred)
	err := e.write(&batch{})
	switch {
	case err == nil:
		e.commits.Add(1)
		if e.opts.OnCommit != nil {
			e.opts.OnCommit(Commit{Rows: rows, Duration: time.Since(begin)})
		}
	case sqlitefile.IsFull(err):
		e.ballast.Release(err)
	case sqlitefile.IsBusy(err):
	default:
		e.fail(err)
	}
	return err
}

// stopDeferred writes the deferred rows for a stop in order. If that fails, the next start sees another stop.
func (e *Engine) stopDeferred() {
	if e.unwritten = e.writeDeferred(); sqlitefile.IsFull(e.unwritten) {
		e.unwritten = e.writeDeferred() // in the space that the ballast has left
	}
}
