package datastore

import (
	"context"
	"fmt"
	"time"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Compact lets go of history: of every key, the versions that a later one at or
// before revision replaced, and tombstones before revision. Ranges and watches
// from before revision are [ErrCompacted] from then on.
//
// It returns when that is durable and visible; the rows are deleted in slices
// after it, between the batches of writers. With physical it waits for that too.
// A revision at or before the last compaction is ErrCompacted, one that has not
// happened [ErrFutureRevision].
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
	return e.WaitTidy(ctx)
}

// waitTidy waits until everything compacted is deleted.
func (e *Engine) WaitTidy(ctx context.Context) error {
	for e.backlog.Load() > 0 {
		idle := e.tidied()
		if e.backlog.Load() == 0 {
			break
		}
		select {
		case <-idle:
		case <-e.stopped:
			return ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// compactedAtMost is the compaction that a transaction has to respect. The caller
// holds e.mu.
func (e *Engine) compactedAtMost() int64 { return e.compacted }

// garbage is what compaction has yet to remove: rows, and stretches of history
// whose superseded versions have not been looked up.
type garbage struct {
	ids     []int64
	jobs    []job
	blocked bool // the disk had no room for it: wait for the next batch
	vacuum  bool // there are pages to give back
}

// job is the history that one compaction, to revision, lets go of.
type job struct {
	history  history
	pos, end uint64
	revision int64
}

func (g *garbage) add(r history, end uint64, revision int64) {
	if end > r.first {
		g.jobs = append(g.jobs, job{r, r.first, end, revision})
	}
	g.vacuum = true
}

// How long a slice may hold up the writers, and what it looks at.
const (
	sliceTime   = 3 * time.Millisecond
	sliceEvents = 512
)

// maintain does the most urgent piece of housekeeping and says whether it did
// anything. Giving pages back waits until nobody writes.
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
	if len(g.ids) > 0 || len(g.jobs) > 0 {
		return e.tolerate(e.deleteSlice())
	}
	if !g.vacuum || !idle {
		return false
	}
	if e.file == nil {
		g.vacuum = false
		return false
	}
	more, err := e.file.Vacuum(full)
	if err == nil && !more {
		g.vacuum = false
		err = e.file.WriteBack() // this is what makes the file shorter
	}
	return e.tolerate(err)
}

// tolerate sorts the errors of housekeeping: without space, or beside another program's lock, it waits; anything
// else is a failure of the disk.
func (e *Engine) tolerate(err error) bool {
	if err == nil {
		return true
	}
	switch {
	case sqlitefile.IsFull(err):
		if e.ballast.Give(err) {
			return true // it is tried again
		}
		e.garbage.blocked = true
	case sqlitefile.IsBusy(err):
		e.garbage.blocked = true
	default:
		e.fail(fmt.Errorf("housekeeping: %w", err))
	}
	return false
}

// deleteSlice removes some superseded versions, from memory and then from the
// disk. A reader that comes between finds the row missing and looks at the
// compaction revision, which is newer than what it reads.
func (e *Engine) deleteSlice() error {
	g := &e.garbage
	if len(g.ids) == 0 {
		e.collect()
	}
	done := len(g.ids)
	if e.file != nil {
		var err error
		if done, err = e.file.DeleteRows(g.ids, sliceTime); err != nil {
			return err
		}
	}
	g.ids = g.ids[done:]
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
	if n == 0 {
		g.ids, g.jobs = nil, nil
		e.pages.forget(e.CompactRevision())
		e.signalTidy()
	}
}

// collect takes a stretch of history apart: the version before every change is
// superseded, and a tombstone before the compaction revision stands for nothing.
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
		// The tombstones of the revision itself stay until the next compaction:
		// a watch may begin there.
		if v.Tombstone() && v.Revision() < j.revision {
			gone = append(gone, v)
			buried = append(buried, v)
		}
	}
	if j.pos == j.end {
		g.jobs = g.jobs[1:]
	}
	for _, v := range gone {
		g.ids = append(g.ids, v.ID)
	}
	e.cache.drop(gone...)
	if len(buried) > 0 {
		e.bury(buried)
	}
}

// bury takes tombstones out of the index.
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

// tidied is closed when there is no backlog; signalTidy closes it.
func (e *Engine) tidied() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.tidy == nil {
		e.tidy = make(chan struct{})
	}
	return e.tidy
}

func (e *Engine) signalTidy() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.tidy != nil {
		close(e.tidy)
		e.tidy = nil
	}
}
