package sqlitefile

import "database/sql/driver"

// Metas is the meta table, or rows of it. The names are:
//
//	compact_revision   the compaction revision
//	revision           the store's revision is at least this
//	reserved           no revision up to it may be used again after a crash
//	resume             in a backup: the revision at which a start goes on
//	clean              how the last process left the database; see stopState
//	log_rows, log_sum  number of rows and sum over their ids, when closed in order
//	run, run_before    which database this is; see run.go
type Metas map[string]int64

// state returns what the row "clean" says.
func (m Metas) state() stopState { return stopState(m["clean"]) }

// Closed reports whether the last process closed the database in order.
func (m Metas) Closed() bool { return m.state().closed() }

// Misses reports whether a database that was closed in order has other rows now than then.
func (m Metas) Misses(rows, sum int64) bool {
	return m.Closed() && (m["log_rows"] != rows || m["log_sum"] != sum)
}

// Compacted returns the compaction revision.
func (m Metas) Compacted() int64 { return m["compact_revision"] }

// Revision returns the revision of a store whose log table ends with the row id last.
func (m Metas) Revision(last int64) int64 {
	return max(1, m["revision"], m["compact_revision"], RevisionOf(last))
}

// Given returns the highest revision that such a store may have given out.
func (m Metas) Given(last int64) int64 { return max(m.Revision(last), m["reserved"]) }

// Metas reads the meta table.
func (c *Connection) Metas() (Metas, error) {
	out := Metas{}
	err := c.Query(`SELECT name, value FROM meta`, func(row []driver.Value) error {
		name, _ := row[0].(string)
		out[name], _ = row[1].(int64)
		return nil
	})
	return out, err
}

// SetMetas writes rows of the meta table.
func (c *Connection) SetMetas(metas Metas) error {
	for name, value := range metas {
		if err := c.setMeta(name, value); err != nil {
			return err
		}
	}
	return nil
}

// SetClosed marks a new database as closed in order, with that number of rows and sum over their ids.
func (c *Connection) SetClosed(rows, sum int64) error {
	if err := c.SetMetas(newRun(0)); err != nil {
		return err
	}
	return c.SetMetas(Metas{"log_rows": rows, "log_sum": sum, "clean": int64(stopClosed)})
}

func (c *Connection) setMeta(name string, value int64) error { return c.Exec(metaSQL, name, value) }

// Leases reads the lease table: TTLs in seconds by id.
func (c *Connection) Leases() (map[int64]int64, error) {
	out := map[int64]int64{}
	err := c.Query(`SELECT id, ttl FROM lease`, func(row []driver.Value) error {
		id, _ := row[0].(int64)
		out[id], _ = row[1].(int64)
		return nil
	})
	return out, err
}

// Grant writes a row of the lease table.
func (c *Connection) Grant(id, ttl int64) error { return c.Exec(grantSQL, id, ttl) }
