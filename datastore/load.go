package datastore

import (
	"database/sql/driver"
	"fmt"
	"maps"
	"slices"
)

// loaded is the state that the file holds.
type loaded struct {
	view
	compacted int64
	ring      ring
	garbage   []int64 // rows that compaction had not deleted yet
	leases    []leaseChange
}

// load reads and verifies the whole log.
func (e *Engine) load() (*loaded, error) {
	d := e.disk
	m, err := d.metas()
	if err != nil {
		return nil, explainSQL(e.path, err)
	}
	clean := stopStateOf(m).closed()
	if !clean {
		stop := watchIO(e.opts.progress("checking " + EngineFile))
		err := d.quickCheck()
		stop()
		if err != nil {
			return nil, err
		}
	}
	l := &loaded{view: newView(max(1, m["revision"], m["compact_revision"])), compacted: m["compact_revision"]}
	var changed []meta
	if floor := m["reserved"]; floor > 0 {
		// Mode Relaxed and no clean stop: clients may have seen revisions up to
		// floor that are lost. None is given out again, and whoever continues
		// from one of them is told that it is compacted, and lists again.
		l.revision = max(l.revision, floor+2)
		l.compacted = l.revision
		changed = []meta{{"revision", l.revision}, {"compact_revision", l.compacted}, {"reserved", 0}}
	}
	if err := e.loadLog(l, m["log_rows"]); err != nil {
		return nil, err
	}
	if clean && (m["log_rows"] != e.rows || m["log_sum"] != e.sum) {
		return nil, fmt.Errorf("%w: %s has %d rows where the last stop left %d (%s)", ErrCorrupt, e.path, e.rows, m["log_rows"], wayOut)
	}
	err = d.writer.query(`SELECT id, ttl FROM lease`, func(row []driver.Value) error {
		id, _ := row[0].(int64)
		ttl, _ := row[1].(int64)
		l.leases = append(l.leases, leaseChange{id: id, ttl: ttl})
		return nil
	})
	if err != nil {
		return nil, explainSQL(e.path, err)
	}
	return l, e.markInUse(changed)
}

// markInUse records, in the database itself and not only in its log, that there
// has been no clean stop: a log that is missing then is noticed. The committer's first
// work is to seal that.
func (e *Engine) markInUse(changed []meta) error {
	d := e.disk
	err := d.setState(d.openState, changed...)
	if err == nil && e.opts.Durability == Relaxed {
		err = d.sync()
	}
	if err == nil {
		err = patiently(e.path, e.opts.busyPatience, e.opts.OnWait, d.copyBack)
	}
	if err != nil {
		return explainSQL(e.path, err)
	}
	return nil
}

// loadLog reads the rows in order and links them into the index and the ring. About total
// rows come, as far as the last stop knew.
func (e *Engine) loadLog(l *loaded, total int64) error {
	progress := e.opts.progress("loading " + EngineFile)
	heads := map[string]*version{}
	var last int64
	var batch []*version
	flush := func() {
		e.cache.add(slices.DeleteFunc(batch, func(v *version) bool { return v.value.Load() == nil })...)
		batch = batch[:0]
	}
	err := e.disk.writer.query(`SELECT id, key, flags, create_revision, version, lease, crc, value FROM log ORDER BY id`, func(row []driver.Value) error {
		v, value, err := e.row(row)
		if err != nil {
			return err
		}
		if v.id <= last {
			return fmt.Errorf("%w: %s: row %d follows row %d (%s)", ErrCorrupt, e.path, v.id, last, wayOut)
		}
		last = v.id
		e.account(v, +1)
		if e.rows%4096 == 0 {
			progress.report(e.rows, max(total, e.rows))
		}
		head := heads[v.key]
		if head != nil {
			v.key = head.key
		}
		if v.revision() <= l.compacted {
			if head != nil {
				l.garbage = append(l.garbage, head.id)
				e.cache.drop(head)
				head.value.Store(nil)
				delete(heads, v.key)
			}
			if v.tombstone() && v.revision() < l.compacted {
				l.garbage = append(l.garbage, v.id)
				return nil
			}
		} else if head != nil {
			v.prev.Store(head)
			e.cache.retire(head)
		}
		heads[v.key] = v
		if v.revision() >= l.compacted {
			l.ring = l.ring.append([]*version{v})
		}
		if !v.tombstone() {
			v.value.Store(&value)
			if batch = append(batch, v); len(batch) == 256 {
				flush()
			}
		}
		return nil
	})
	if err != nil {
		if sqliteCode(err) != 0 {
			return explainSQL(e.path, err)
		}
		return err
	}
	flush()
	l.revision = max(l.revision, last>>subBits)
	for _, key := range sortedKeys(heads) {
		if v := heads[key]; v.tombstone() {
			l.dead.Load(key, v)
		} else {
			l.live.Load(key, v)
			l.bytes += v.bytes()
		}
	}
	return nil
}

// row makes a version of a row of the log, if its checksum holds.
func (e *Engine) row(row []driver.Value) (*version, []byte, error) {
	number := func(i int) int64 { n, _ := row[i].(int64); return n }
	key, _ := row[1].([]byte)
	value, _ := row[7].([]byte)
	v := &version{id: number(0), key: string(key), create: number(3), version: number(4), lease: number(5), size: int32(len(value))}
	if v.checksum(value) != number(6) || v.flags() != number(2) {
		return nil, nil, fmt.Errorf("%w: %s: row %d (revision %d) has a bad checksum (%s)", ErrCorrupt, e.path, v.id, v.revision(), wayOut)
	}
	if value == nil {
		value = []byte{}
	}
	return v, value, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
