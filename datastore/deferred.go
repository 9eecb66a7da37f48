package datastore

import (
	"strings"
	"time"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Heartbeats are the updates by which something says that it is still there: a
// node's lease, renewed every ten seconds. In a cluster in which nothing happens
// they are all that is written, and each commit writes whole pages. In mode Relaxed
// they are published at once and written together, at the latest after
// [Options.HeartbeatInterval] and before anything else is; lost, they are only late,
// since the next one says the same. Their revisions are reserved, as all of that
// mode's are, so none comes again for something else.

// isHeartbeat tells whether a batch has nothing else in it.
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

// write commits a batch, with the heartbeats that wait.
func (e *Engine) write(b *batch) error {
	late := e.deferred
	if len(late) > 0 {
		b = &batch{rows: append(late[:len(late):len(late)], b.rows...), compact: b.compact, leases: b.leases}
	}
	if err := e.file.Commit(b.forDisk()); err != nil {
		return err
	}
	e.deferred = nil
	e.cache.add(late...) // evicted before, they would be nowhere
	e.unsynced = e.opts.Durability == Relaxed
	return nil
}

// writeLate writes the heartbeats that wait. Without space they wait on: there may be
// some by the next time.
func (e *Engine) writeDeferred() {
	if len(e.deferred) == 0 || e.Err() != nil {
		return
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
	case sqlitefile.IsBusy(err): // the same
	default:
		e.fail(err)
	}
}
