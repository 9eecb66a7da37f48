package datastore

import (
	"context"
	"fmt"
	"time"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Compact removes history: of every key, the versions that a later one at or before revision has
// superseded, and tombstones before revision. From then on, the error of ranges and watches from before
// revision is [ErrCompacted].
//
// Compact returns when this is durable and visible. The rows are deleted later, in slices between the
// batches of writers; with physical, Compact waits for that too. The error is ErrCompacted for a revision
// at or before the last compaction, and [ErrFutureRevision] for one that does not exist yet.
func (e *Engine) Compact(ctx context.Context, revision int64, physical bool) error {
	err := e.submit(ctx, func(b *batch) (bool, error) {
		if revision <= e.compacted {
			return false, fmt.Errorf("%w: %d, compacted to %d", ErrCompacted, revision, e.compacted)
		}
		if now := e.snap.Load().revision; revision > now {
			return false, fmt.Errorf("%w: %d, the newest is %d", ErrFutureRevision, revision, now)
		}
		e.compacted = revision
		b.compact = revision
		return false, nil
	})
	if err != nil || !physical {
		return err
	}
	return e.waitTidy(ctx)
}

// waitTidy waits until all compacted rows are deleted.
func (e *Engine) waitTidy(ctx context.Context) error {
	return e.waitUntil(ctx, &e.tidy, func() bool {
		e.wakeCommitter()
		return e.backlog.Load() == 0
	})
}

// garbage is what compaction has yet to remove: rows, and stretches of history whose superseded versions
// are yet to be found.
type garbage struct {
	ids     []int64
	jobs    []job
	blocked bool // the disk had no space to delete it: wait for the next batch
	vacuum  bool // there are free pages to return
	shorten bool // free pages were returned, and the next checkpoint makes the file shorter
}

// job is the stretch of history that one compaction, to revision, removes.
type job struct {
	history  history
	pos, end uint64
	revision int64
}

func (g *garbage) add(h history, end uint64, revision int64) {
	if end > h.first {
		g.jobs = append(g.jobs, job{h, h.first, end, revision})
	}
	g.vacuum = true
}

// How long one slice may delay writers, and how many changes it examines.
const (
	sliceTime   = 3 * time.Millisecond
	sliceEvents = 512
)

// maintain does the most urgent piece of housekeeping, and reports whether it did anything. It returns free
// pages only when nobody writes.
func (e *Engine) maintain(idle bool) (worked bool) {
	full := e.ballast.Released()
	if e.retry.Swap(false) {
		e.garbage.blocked = false
		e.ballast.SettleDeletions()
	}
	if e.file != nil {
		if err := e.file.Checkpoint(full, idle); err != nil {
			switch {
			case sqlitefile.IsFull(err):
				e.ballast.Give(err)
			case !sqlitefile.IsBusy(err):
				e.fail(fmt.Errorf("checkpoint: %w", err))
				return false
			}
		}
	}
	g := &e.garbage
	if !idle {
		g.blocked = false
	}
	if g.blocked {
		return false
	}
	if len(g.jobs) > 0 || len(g.ids) > 0 {
		return e.tolerate(e.deleteSlice())
	}
	if !g.vacuum || !idle {
		return false
	}
	if e.file == nil {
		g.vacuum = false
		return false
	}
	freed, more, err := e.file.Vacuum(full)
	g.shorten = g.shorten || freed
	if err == nil && !more {
		g.vacuum = false
		// Otherwise there is no checkpoint before the WAL has grown to its target: each writes again
		// every page that has changed since the last one.
		if g.shorten || full {
			g.shorten = false
			err = e.file.WriteBack()
		}
	}
	return e.tolerate(err)
}

// tolerate handles an error of housekeeping. On a full disk, or while another program has locked the
// database, housekeeping waits. Any other error is a failure of the disk.
func (e *Engine) tolerate(err error) bool {
	if err == nil {
		return true
	}
	switch {
	case sqlitefile.IsFull(err):
		if e.ballast.Give(err) {
			return true // to try again
		}
		e.garbage.blocked = true
	case sqlitefile.IsBusy(err):
		e.garbage.blocked = true
	default:
		e.fail(fmt.Errorf("housekeeping: %w", err))
	}
	return false
}

// deleteSlice removes some superseded versions from memory and then from the disk. A reader that does not
// find a row any more compares its revision with the compaction revision, which is newer.
func (e *Engine) deleteSlice() error {
	g := &e.garbage
	if len(g.ids) == 0 {
		e.collect()
	}
	done := len(g.ids)
	if e.file != nil && done > 0 {
		var err error
		if done, err = e.file.DeleteRows(g.ids, sliceTime); err != nil {
			return err
		}
	}
	g.ids = g.ids[done:]
	g.vacuum = true
	e.setBacklog()
	return nil
}

func (e *Engine) setBacklog() {
	g := &e.garbage
	n := int64(len(g.ids))
	for i := range g.jobs {
		n += int64(g.jobs[i].end - g.jobs[i].pos)
	}
	e.backlog.Store(n)
	if len(g.jobs) == 0 {
		e.pages.forget(e.CompactRevision())
	}
	if n == 0 {
		g.ids, g.jobs = nil, nil
		e.tidy.fire()
	}
}

// collect finds the garbage in a stretch of history: the version before every change, which is superseded,
// and tombstones before the compaction revision.
func (e *Engine) collect() {
	g := &e.garbage
	j := &g.jobs[0]
	var gone, buried []*version
	for n := 0; j.pos < j.end && n < sliceEvents; n++ {
		v := j.history.at(j.pos)
		j.pos++
		if p := v.prev.Swap(nil); p != nil && !p.Tombstone() {
			gone = append(gone, p)
		}
		// Tombstones of the compaction revision itself stay until the next compaction: a watch
		// may begin there.
		if v.Tombstone() && v.Revision() < j.revision {
			gone = append(gone, v)
			buried = append(buried, v)
		}
	}
	if j.pos == j.end {
		g.jobs = g.jobs[1:]
	}
	for _, v := range gone {
		g.ids = append(g.ids, v.ID) // its row is on the disk: the compaction's batch has written the deferred ones
	}
	e.cache.drop(gone...)
	if len(buried) > 0 {
		e.bury(buried)
	}
}

// bury removes tombstones from the index.
func (e *Engine) bury(vs []*version) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, v := range vs {
		if head, ok := e.spec.dead.Get(v.Key); ok && head == v {
			e.spec.dead.Delete(v.Key)
		}
	}
	if e.pending == nil && e.fatal == nil { // a panic may have left e.spec half changed
		snap := *e.snap.Load()
		snap.index = e.spec.clone()
		e.snap.Store(&snap)
	}
}
