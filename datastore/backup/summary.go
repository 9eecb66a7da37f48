package backup

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Summary is what Summarize finds in a database.
type Summary struct {
	Metas    sqlitefile.Metas
	rows     int64
	sum      int64
	Revision int64 // of the store
	Keys     int64 // live keys
	bytes    int64 // of the live keys and their values
	leases   int64
	problems []string
	more     int // number of problems beyond maxProblems
}

// maxProblems is the most problems that a Summary lists.
const maxProblems = 20

func (s *Summary) problem(format string, args ...any) {
	if len(s.problems) == maxProblems {
		s.more++
		return
	}
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

// Err returns ErrCorrupt with the first problem, or nil.
func (s *Summary) Err(path string) error {
	if len(s.problems) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s: %s", sqlitefile.ErrCorrupt, path, s.problems[0])
}

// newestRow is the newest row of a key.
type newestRow struct {
	id, create, version, lease int64
	size                       int64
}

func (k newestRow) present() bool { return k.version > 0 }

// Summarize reads every row of the log table. With values, it also verifies each checksum and the
// invariants between rows (DESIGN.md). The connection must be in a transaction. As long as the file
// can be read, damage is a problem in the Summary and no error.
func Summarize(ctx context.Context, c *sqlitefile.Connection, path string, values bool, progress sqlitefile.Progress) (*Summary, error) {
	s := &Summary{}
	var err error
	if s.Metas, err = c.Metas(); err != nil {
		return nil, sqlitefile.Explain(path, err)
	}
	leases, err := c.Leases()
	if err != nil {
		return nil, sqlitefile.Explain(path, err)
	}
	for id, ttl := range leases {
		if id <= 0 || ttl <= 0 {
			s.problem("lease %d has a TTL of %d s", id, ttl)
		}
	}
	s.leases = int64(len(leases))
	total, err := c.Number(`SELECT count(*) FROM log`)
	if err != nil {
		return nil, sqlitefile.Explain(path, err)
	}
	query := `SELECT id, key, flags, create_revision, version, lease, crc, length(value) FROM log ORDER BY id`
	if values {
		query = `SELECT id, key, flags, create_revision, version, lease, crc, length(value), value FROM log ORDER BY id`
	}
	newest := map[string]newestRow{}
	compacted := s.Metas["compact_revision"]
	var last int64
	err = c.Query(query, func(row []driver.Value) error {
		if s.rows++; s.rows%1024 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			progress.Report(s.rows, total)
		}
		number := func(i int) int64 { n, _ := row[i].(int64); return n }
		key, _ := row[1].([]byte)
		k := newestRow{number(0), number(3), number(4), number(5), number(7)}
		s.sum += sqlitefile.RowSum(k.id)
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
		if sqlitefile.IsSQLError(err) {
			return nil, sqlitefile.Explain(path, err)
		}
		return nil, err
	}
	s.Revision = s.Metas.Revision(last)
	for key, k := range newest {
		if k.present() {
			s.Keys++
			s.bytes += int64(len(key)) + k.size
			if _, granted := leases[k.lease]; values && k.lease != 0 && !granted {
				s.problem("key %q has lease %d, which does not exist", key, k.lease)
			}
		}
	}
	if s.Metas.Misses(s.rows, s.sum) {
		s.problem("%d rows, and the last stop left %d", s.rows, s.Metas["log_rows"])
	}
	progress.Report(total, total)
	return s, nil
}

// check checks one row. before is the previous row of the same key, or zero.
func (s *Summary) check(key []byte, k, before newestRow, flags, crc int64, value []byte, compacted int64) {
	r := sqlitefile.Row{ID: k.id, Key: string(key), Create: k.create, Version: k.version, Lease: k.lease}
	at := r.Revision()
	switch {
	case r.Checksum(value) != crc || r.Flags() != flags:
		s.problem("row %d (revision %d) has a bad checksum", k.id, at)
		return // other problems would only follow from this one
	case at < 1 || len(key) == 0:
		s.problem("row %d has no revision or no key", k.id)
		return
	case r.Tombstone():
		return
	case k.version < 0 || k.create < 1 || k.create > at || (k.version == 1) != (k.create == at):
		s.problem("row %d (revision %d) is version %d, created in revision %d", k.id, at, k.version, k.create)
	case before.present() && sqlitefile.RevisionOf(before.id) >= compacted && k.version > 1 && (k.create != before.create || k.version != before.version+1):
		// Of older rows, a compaction may have deleted some.
		s.problem("row %d (revision %d) is version %d after version %d", k.id, at, k.version, before.version)
	}
}
