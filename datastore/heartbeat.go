package datastore

import (
	"strings"
	"time"
)

// Heartbeats are the updates by which something says that it is still there: a
// node's lease, renewed every ten seconds. In a cluster in which nothing happens
// they are all that is written, and each commit writes whole pages. In mode Relaxed
// they are published at once and written together, at the latest after
// [Options.HeartbeatInterval] and before anything else is; lost, they are only late,
// since the next one says the same. Their revisions are reserved, as all of that
// mode's are, so none comes again for something else.

// isHeartbeat tells whether a batch has nothing else in it.
func (e *Engine) isHeartbeat(b *batch) bool {
	if e.opts.Heartbeats == "" || len(b.meta) > 0 || len(b.leases) > 0 || b.compact > 0 || len(e.late)+len(b.rows) > batchRows {
		return false
	}
	for _, v := range b.rows {
		if v.tombstone() || v.version == 1 || v.lease != 0 || !strings.HasPrefix(v.key, e.opts.Heartbeats) {
			return false
		}
	}
	return true
}

// write commits a batch, with the heartbeats that wait.
func (e *Engine) write(b *batch) error {
	late := e.late
	if len(late) > 0 {
		b = &batch{rows: append(late[:len(late):len(late)], b.rows...), meta: b.meta, leases: b.leases}
	}
	if err := e.disk.commit(b); err != nil {
		return err
	}
	e.late = nil
	e.cache.add(late...) // evicted before, they would be nowhere
	e.unsynced = e.opts.Durability == Relaxed
	return nil
}

// writeLate writes the heartbeats that wait. Without space they wait on: there may be
// some by the next time.
func (e *Engine) writeLate() {
	if len(e.late) == 0 || e.Err() != nil {
		return
	}
	begin, rows := time.Now(), len(e.late)
	err := e.write(&batch{})
	switch {
	case err == nil:
		e.commits.Add(1)
		if e.opts.OnCommit != nil {
			e.opts.OnCommit(Commit{Rows: rows, Duration: time.Since(begin)})
		}
	case isFull(err):
		e.ballast.release(err)
	case isBusy(err): // the same
	default:
		e.fail(err)
	}
}
