package datastore

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// initial is the state that an engine begins with.
type initial struct {
	index
	compacted int64
	history   history
	garbage   []int64         // rows that compaction has not deleted yet
	leases    map[int64]int64 // TTL in seconds by id
}

// load reads and verifies the whole database.
func (e *Engine) load() (*initial, error) {
	f := e.file
	m, err := f.Metas()
	if err != nil {
		return nil, err
	}
	if !m.Closed() {
		// SQLite reports no progress of its check. While it waits for a disk that hangs, the process could not be killed either.
		seconds := int64(0)
		stop := e.opts.Progress("checking "+EngineFile).Meanwhile(time.Second, func() (done, total int64) { seconds++; return seconds, 0 })
		err := f.QuickCheck()
		stop()
		if err != nil {
			return nil, err
		}
	}
	l := &initial{index: newIndex(m.Revision(0)), compacted: m.Compacted()}
	var changed sqlitefile.Metas
	floor := backup.Resumed(m) // a backup: clients may have seen what was written after it
	if reserved := m["reserved"]; reserved > 0 {
		floor = max(floor, reserved+2) // mode Relaxed, and no clean stop: clients may have seen what is lost
	}
	if floor > 0 {
		// No revision is used again. A client that continues from one of them gets ErrCompacted and
		// lists again.
		l.revision = max(l.revision, floor)
		l.compacted = l.revision
		changed = sqlitefile.Metas{"revision": l.revision, "compact_revision": l.compacted, "reserved": 0, "resume": 0}
	}
	if err := e.loadLog(l, m); err != nil {
		return nil, err
	}
	if err := f.CheckRows(m); err != nil {
		return nil, err
	}
	if l.leases, err = f.Leases(); err != nil {
		return nil, err
	}
	return l, f.MarkInUse(changed)
}

// loadLog reads the rows in order and links them into the index and the history.
func (e *Engine) loadLog(l *initial, m sqlitefile.Metas) error {
	progress, total := e.opts.Progress("loading "+EngineFile), m["log_rows"] // as far as the last stop knew
	heads := map[string]*version{}
	var last, rows int64
	var batch []*version
	flush := func() {
		e.cache.add(slices.DeleteFunc(batch, func(v *version) bool { return v.value.Load() == nil })...)
		batch = batch[:0]
	}
	err := e.file.Load(func(r sqlitefile.Row, value []byte) error {
		v := &version{Row: r, size: int32(len(value))}
		if v.ID <= last {
			return fmt.Errorf("%w: %s: row %d follows row %d (%s)", ErrCorrupt, e.path, v.ID, last, sqlitefile.Remedy)
		}
		last = v.ID
		if rows++; rows%4096 == 0 {
			progress.Report(rows, max(total, rows))
		}
		head := heads[v.Key]
		if head != nil {
			v.Key = head.Key
		}
		if v.Revision() <= l.compacted {
			if head != nil {
				l.garbage = append(l.garbage, head.ID)
				e.cache.drop(head)
				head.value.Store(nil)
				delete(heads, v.Key)
			}
			if v.Tombstone() && v.Revision() < l.compacted {
				l.garbage = append(l.garbage, v.ID)
				return nil
			}
		} else if head != nil {
			v.prev.Store(head)
			e.cache.retire(head)
		}
		heads[v.Key] = v
		if v.Revision() >= l.compacted {
			l.history = l.history.append([]*version{v})
		}
		if !v.Tombstone() {
			v.value.Store(&value)
			if batch = append(batch, v); len(batch) == 256 {
				flush()
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	flush()
	l.revision = max(l.revision, sqlitefile.RevisionOf(last))
	for _, key := range sortedKeys(heads) {
		if v := heads[key]; v.Tombstone() {
			l.dead.Load(key, v)
		} else {
			l.live.Load(key, v)
			l.bytes += v.bytes()
		}
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
