package sqlitefile

import (
	"database/sql/driver"
)

// Metas is the meta table, or rows of it. The names are:
//
//	compact_revision   the compaction revision
//	revision           the store's revision is at least this
//	reserved           no revision up to it may be used again after a crash
//	resume             in a backup: the revision at which a start goes on
//	clean              how the last process left the database; see stopState
//	log_rows, log_sum  number of rows and sum over their ids, when closed in order
//	run, run_before    which database this is; see newRun
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

// stopState is the value of the meta row "clean". It says how the last process left the database,
// and whether the database needs its WAL.
//
// While an engine runs, the row is "sealed" in the WAL and "open" in the database itself: each
// checkpoint of the engine commits "open", copies the whole WAL back, and commits "sealed" (see
// [File.WriteBack]). So a database without its WAL shows which of two things has happened. It says
// "sealed" if another program has copied the whole WAL back. It says "open" if commits are missing.
//
// Earlier releases know the first three values. They treat every value but stopClosed as that of a
// killed process, and overwrite it when they start. So their file never says "sealed".
type stopState int64

const (
	stopClosed        stopState = 1  // closed in order: the database is complete without a WAL
	stopOpen          stopState = 0  // in use, or killed
	stopOpenRelaxed   stopState = -1 // the same, in mode relaxed
	stopSealed        stopState = 2  // in use, or killed; every commit before this one is there
	stopSealedRelaxed stopState = -2 // the same, in mode relaxed
)

// closed reports whether the last process closed the database in order.
func (s stopState) closed() bool { return s == stopClosed }

// open reports whether the last commit was that of a start or of a checkpoint.
func (s stopState) open() bool { return s == stopOpen || s == stopOpenRelaxed }

// ordered reports whether each commit was on the disk before the next one was written.
func (s stopState) ordered() bool { return s == stopOpen || s == stopSealed }

// sealed reports whether a database that says so without its WAL is complete.
func (s stopState) sealed() bool { return s == stopSealed || s == stopSealedRelaxed }

// inUseStates returns the states that an engine of that mode writes while it runs.
func inUseStates(relaxed bool) (open, sealed stopState) {
	if relaxed {
		return stopOpenRelaxed, stopSealedRelaxed
	}
	return stopOpen, stopSealed
}
