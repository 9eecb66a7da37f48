package sqlitefile

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/karve-k8s/karve/datastore/directory"
)

// A checkpoint is due when the WAL has the target size of its mode. The WAL never exceeds walLimit as
// long as transactions are smaller than the difference of the two.
const (
	walTargetFull    = 2 << 20
	walTargetRelaxed = 3 << 20 // a checkpoint may copy it to a full disk: datastore.Options.BallastBytes is more
	walLimit         = 16 << 20
)

const (
	insertSQL = `INSERT INTO log (id, key, flags, create_revision, version, lease, crc, value) VALUES (?,?,?,?,?,?,?,?)`
	metaSQL   = `INSERT INTO meta (name, value) VALUES (?,?) ON CONFLICT (name) DO UPDATE SET value = excluded.value`
	grantSQL  = `INSERT INTO lease (id, ttl) VALUES (?,?) ON CONFLICT (id) DO UPDATE SET ttl = excluded.ttl`
	revokeSQL = `DELETE FROM lease WHERE id = ?`
	deleteSQL = `DELETE FROM log WHERE id = ?`
	readSQL   = `SELECT id, crc, value FROM log WHERE id = ?`
	readsSQL  = `SELECT id, crc, value FROM log WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id`
)

// transaction runs body, which changes at most that many pages, between BEGIN IMMEDIATE and COMMIT.
// If the error is [IsFull], the transaction was rolled back and nothing of it is there. After any
// other error of COMMIT its outcome is unknown.
//
// Unless the newest commit says "sealed", this one does.
func (f *File) transaction(pages int64, body func(*Connection) error) error {
	if f.restartWAL || f.mustOpen {
		f.gate.Lock()
		defer f.gate.Unlock()
		if f.long == 0 {
			switch err := f.writeBackAlone(func() {}); {
			case err == nil:
				f.restartWAL = false // the commit below restarts the WAL
			case !IsBusy(err):
				return err
			}
		}
		if f.mustOpen {
			return fmt.Errorf("%w: the WAL could not be copied back before", directory.ErrNoSpace)
		}
	}
	if err := f.broken("begin"); err != nil {
		return err
	}
	if f.sealed {
		return f.commitPages(pages, body)
	}
	err := f.commitPages(pages+metaPages, func(c *Connection) error {
		if err := body(c); err != nil {
			return err
		}
		return c.setMeta("clean", int64(f.sealState))
	})
	f.sealed = err == nil
	return err
}

// commitPages is transaction without the stopState.
func (f *File) commitPages(pages int64, body func(*Connection) error) error {
	if err := f.writer.Exec("BEGIN IMMEDIATE"); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	f.wal += pages * pageSize
	err := body(f.writer)
	if err == nil {
		err = f.broken("commit")
	}
	if err == nil {
		err = f.writer.Exec("COMMIT")
	}
	if err == nil {
		err = f.broken("committed")
	}
	if err != nil {
		// SQLite may have rolled back by itself; then this fails, which is fine.
		_ = f.writer.Exec("ROLLBACK")
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

func (f *File) broken(step string) error {
	if fail := f.fail.Load(); fail != nil {
		return (*fail)(step)
	}
	return nil
}

// pageSize is the size of a page of the database.
const pageSize = 4096

// metaPages is an upper estimate of the pages that a transaction changes beside those of its rows.
const metaPages = 5

// Batch is what one commit writes.
type Batch struct {
	Rows   Rows // to add to the log table
	Metas  Metas
	Leases []LeaseChange
}

// Rows are rows of the log table with their values. (It is no iterator: each loop over one would
// allocate.)
type Rows interface {
	Len() int
	At(i int) (*Row, []byte)
}

// LeaseChange is a row of the lease table to write, or to delete if it is Revoked.
type LeaseChange struct {
	ID, TTL int64
	Revoked bool
}

// Commit writes one batch.
func (f *File) Commit(b Batch) error {
	rows := b.Rows.Len()
	bytes := int64(metaPages+len(b.Leases)) * pageSize
	for i := range rows {
		bytes += rowPages(b.Rows.At(i))
	}
	err := f.transaction((bytes+pageSize-1)/pageSize, func(c *Connection) error {
		for i := range rows {
			if err := c.insert(b.Rows.At(i)); err != nil {
				return err
			}
		}
		if err := c.SetMetas(b.Metas); err != nil {
			return err
		}
		for _, l := range b.Leases {
			var err error
			if l.Revoked {
				err = c.Exec(revokeSQL, l.ID)
			} else {
				err = c.Grant(l.ID, l.TTL)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		for i := range rows {
			r, _ := b.Rows.At(i)
			f.account(r.ID, +1)
		}
	}
	return err
}

// rowPages is an upper estimate of the bytes that a row takes in the WAL.
func rowPages(r *Row, value []byte) int64 {
	n := (int64(len(value)) + int64(len(r.Key)) + 100) * 6 / 5
	if n > 4000 {
		n = (n + 4*pageSize) &^ (pageSize - 1)
	}
	return n
}

// SetMetas writes rows of the meta table in a transaction of their own.
func (f *File) SetMetas(metas Metas) error {
	return f.transaction(metaPages, func(c *Connection) error { return c.SetMetas(metas) })
}

// sliceRows is the most rows that one call of DeleteRows removes.
const sliceRows = 1024

// DeleteRows removes rows of the log table until the time is used up, and returns how many it has
// removed.
func (f *File) DeleteRows(ids []int64, budget time.Duration) (done int, err error) {
	ids = ids[:min(len(ids), sliceRows)]
	err = f.transaction(int64(len(ids))*2+metaPages, func(c *Connection) error {
		begin := time.Now()
		done = 0
		for _, id := range ids {
			if err := c.Exec(deleteSQL, id); err != nil {
				return err
			}
			done++
			if done%16 == 0 && time.Since(begin) > budget {
				return nil
			}
		}
		return nil
	})
	if err == nil {
		f.wal -= int64(len(ids)-done) * 2 * pageSize
		for _, id := range ids[:done] {
			f.account(id, -1)
		}
	}
	return done, err
}

// Read calls each with the index of every row and its value, whose checksum it has verified. The rows are
// ordered by their ids. The error is [ErrRowMissing] if one of them is not there.
func (f *File) Read(rows []*Row, each func(i int, value []byte)) error {
	c := <-f.readers
	if c == nil {
		return ErrClosed
	}
	defer func() { f.readers <- c }()
	f.gate.RLock()
	defer f.gate.RUnlock()
	query, ids := readSQL, driver.Value(rows[0].ID)
	if len(rows) > 1 {
		list := []byte{'['}
		for _, r := range rows {
			list = append(strconv.AppendInt(list, r.ID, 10), ',')
		}
		list[len(list)-1] = ']'
		query, ids = readsSQL, string(list)
	}
	found := 0
	err := c.Query(query, func(columns []driver.Value) error {
		id, _ := columns[0].(int64)
		sum, _ := columns[1].(int64)
		value, _ := columns[2].([]byte)
		r := rows[found]
		if r.ID != id {
			return ErrRowMissing
		}
		if r.Checksum(value) != sum {
			return fmt.Errorf("%w: %s: row %d (revision %d) has a bad checksum (%s)", ErrCorrupt, f.path, r.ID, r.Revision(), Remedy)
		}
		if value == nil {
			value = []byte{}
		}
		each(found, value)
		found++
		return nil
	}, ids)
	switch {
	case err == nil && found < len(rows):
		return ErrRowMissing
	case err == nil || errors.Is(err, ErrCorrupt) || errors.Is(err, ErrRowMissing):
		return err
	}
	return Explain(f.path, err)
}
