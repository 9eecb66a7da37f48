package datastore

import (
	"context"
	"database/sql/driver"
	"fmt"
)

// scan is what a look at every row of a log finds.
type scan struct {
	metas    map[string]int64
	rows     int64
	sum      int64
	revision int64 // the store's
	keys     int64 // that are there
	bytes    int64 // of those keys and their values
	leases   int64
	problems []string
	more     int // problems beyond maxProblems
}

// maxProblems bounds what is remembered of a file that is all damage.
const maxProblems = 20

func (s *scan) problem(format string, args ...any) {
	if len(s.problems) == maxProblems {
		s.more++
		return
	}
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

// err is ErrCorrupt with the first problem, or nil.
func (s *scan) err(path string) error {
	if len(s.problems) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s: %s", ErrCorrupt, path, s.problems[0])
}

// scanned is what is remembered of the newest row of a key.
type scanned struct {
	id, create, version, lease int64
	size                       int64
}

func (k scanned) there() bool { return k.version > 0 }

// scanLog looks at every row, and with values at its checksum and at what always
// holds (DESIGN.md). The connection is in a transaction. Damage is no error but a
// problem, as long as the file can be read.
func scanLog(ctx context.Context, c *connection, path string, values bool, progress Progress) (*scan, error) {
	s := &scan{}
	var err error
	if s.metas, err = c.metas(); err != nil {
		return nil, explainSQL(path, err)
	}
	leases := map[int64]bool{}
	err = c.query(`SELECT id, ttl FROM lease`, func(row []driver.Value) error {
		id, _ := row[0].(int64)
		ttl, _ := row[1].(int64)
		leases[id] = true
		if id <= 0 || ttl <= 0 {
			s.problem("lease %d has a TTL of %d s", id, ttl)
		}
		return nil
	})
	if err != nil {
		return nil, explainSQL(path, err)
	}
	s.leases = int64(len(leases))
	total, err := c.number(`SELECT count(*) FROM log`)
	if err != nil {
		return nil, explainSQL(path, err)
	}
	query := `SELECT id, key, flags, create_revision, version, lease, crc, length(value) FROM log ORDER BY id`
	if values {
		query = `SELECT id, key, flags, create_revision, version, lease, crc, length(value), value FROM log ORDER BY id`
	}
	newest := map[string]scanned{}
	compacted := s.metas["compact_revision"]
	var last int64
	err = c.query(query, func(row []driver.Value) error {
		if s.rows++; s.rows%1024 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			progress.report(s.rows, total)
		}
		number := func(i int) int64 { n, _ := row[i].(int64); return n }
		key, _ := row[1].([]byte)
		k := scanned{number(0), number(3), number(4), number(5), number(7)}
		s.sum += rowSum(k.id)
		if values {
			value, _ := row[8].([]byte)
			s.check(key, k, newest[string(key)], number(2), number(6), value, compacted)
			if k.id <= last {
				s.problem("row %d follows row %d", k.id, last)
			}
		}
		last = k.id
		newest[string(key)] = k
		return nil
	})
	if err != nil {
		if sqliteCode(err) != 0 {
			return nil, explainSQL(path, err)
		}
		return nil, err
	}
	s.revision = max(1, s.metas["revision"], compacted, last>>subBits)
	for key, k := range newest {
		if k.there() {
			s.keys++
			s.bytes += int64(len(key)) + k.size
			if values && k.lease != 0 && !leases[k.lease] {
				s.problem("key %q has lease %d, which is not there", key, k.lease)
			}
		}
	}
	if stopStateOf(s.metas).closed() && (s.metas["log_rows"] != s.rows || s.metas["log_sum"] != s.sum) {
		s.problem("%d rows where the last stop left %d", s.rows, s.metas["log_rows"])
	}
	progress.report(total, total)
	return s, nil
}

// check looks at one row; before is the row of its key before it, or zero.
func (s *scan) check(key []byte, k, before scanned, flags, crc int64, value []byte, compacted int64) {
	v := &version{id: k.id, key: string(key), create: k.create, version: k.version, lease: k.lease}
	at := v.revision()
	switch {
	case v.checksum(value) != crc || v.flags() != flags:
		s.problem("row %d (revision %d) has a bad checksum", k.id, at)
		return // the others would follow from it
	case at < 1 || len(key) == 0:
		s.problem("row %d has no revision or no key", k.id)
		return
	case v.tombstone():
		return
	case k.version < 0 || k.create < 1 || k.create > at || (k.version == 1) != (k.create == at):
		s.problem("row %d (revision %d) is version %d, created in revision %d", k.id, at, k.version, k.create)
	case before.there() && before.id>>subBits >= compacted && k.version > 1 && (k.create != before.create || k.version != before.version+1):
		// Older rows may be half deleted by a compaction.
		s.problem("row %d (revision %d) is version %d after version %d", k.id, at, k.version, before.version)
	}
}
