package datastore

import (
	"cmp"
	"slices"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// A deferred update takes the place of the row that its key has on the disk, in the same commit. So the page at the
// end of the log table keeps its size, and compaction has nothing to delete. The rows that are replaced, and those
// that were never written because a later one came, are held in memory until compaction removes them: history is
// whole as long as the process runs, and after a stop in order, which writes them. After any other stop of mode
// Relaxed history begins anew, above all reserved revisions.

// heldBytes bounds the memory of versions that the disk does not have.
const heldBytes = 4 << 20

// writeReplacing commits the deferred rows and then those of b.
func (e *Engine) writeReplacing(b *batch) error {
	rows, replaced, skipped := e.replace()
	all := &batch{rows: slices.Concat(rows, b.rows), replaced: replaced, compact: b.compact, leases: b.leases}
	if err := e.file.Commit(all.forDisk()); err != nil {
		if sqlitefile.IsFull(err) || sqlitefile.IsBusy(err) { // after other errors, the rows may be gone
			e.cache.add(replaced...)
		}
		return err
	}
	for _, v := range rows {
		v.place = onDisk
	}
	e.deferred = nil
	e.hold(skipped)
	e.hold(replaced)
	e.cache.add(rows...) // not earlier: an evicted value must be on the disk
	e.unsynced = e.opts.Durability == Relaxed
	return nil
}

// replace returns which deferred rows to write, the rows on the disk that they replace, and those that are
// not written.
//
// All older rows of the same life of a key are replaced, because a gap between versions would be damage. If one of
// their values is not in memory any more, or if too many are, all deferred rows are written and none is replaced.
func (e *Engine) replace() (rows, replaced, skipped []*version) {
	newest := make(map[string]*version, len(e.deferred))
	for _, v := range e.deferred {
		newest[v.Key] = v
	}
	size := e.heldSize
	for _, v := range e.deferred {
		if newest[v.Key] != v {
			skipped = append(skipped, v)
			size += v.bytes()
			continue
		}
		rows = append(rows, v)
		for p := v.prev.Load(); p != nil && !p.Tombstone(); p = p.prev.Load() {
			if p.place != onDisk {
				continue
			}
			if size += p.bytes(); size > heldBytes || !e.cache.hold(p) {
				e.cache.add(replaced...)
				return e.deferred, nil, nil
			}
			replaced = append(replaced, p)
		}
	}
	if size > heldBytes {
		e.cache.add(replaced...)
		return e.deferred, nil, nil
	}
	return rows, replaced, skipped
}

// hold keeps versions that the disk does not have.
func (e *Engine) hold(vs []*version) {
	for _, v := range vs {
		v.place = held
		e.heldSize += v.bytes()
	}
	e.held = append(e.held, vs...)
}

// dropReleased forgets the held versions that compaction has removed.
func (e *Engine) dropReleased() {
	e.held = slices.DeleteFunc(e.held, func(v *version) bool {
		if v.place == released {
			e.heldSize -= v.bytes()
		}
		return v.place == released
	})
}

// writeHeld completes the history on the disk, for a stop in order. If that fails, the next start sees another
// stop.
func (e *Engine) writeHeld() {
	if e.unwritten = e.tryWriteHeld(); sqlitefile.IsFull(e.unwritten) {
		e.unwritten = e.tryWriteHeld() // in the space that the ballast has left
	}
}

func (e *Engine) tryWriteHeld() error {
	if err := e.writeDeferred(); err != nil {
		return err
	}
	e.dropReleased() // of a compaction that has not ended: a key that it has deleted must not come back
	if len(e.held) == 0 {
		return nil
	}
	slices.SortFunc(e.held, func(a, b *version) int { return cmp.Compare(a.ID, b.ID) })
	err := e.file.Commit((&batch{rows: e.held}).forDisk())
	switch {
	case err == nil:
		e.held = nil
	case sqlitefile.IsFull(err):
		e.ballast.Release(err)
	case sqlitefile.IsBusy(err):
	default:
		e.fail(err)
	}
	return err
}
