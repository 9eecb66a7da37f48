package backup

import (
	"context"
	"database/sql/driver"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"maps"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// A backup of a running engine is sent as rows, and the receiver makes a database of them. So the
// receiver's user writes it to the receiver's directory, and a small data directory needs no space
// for a copy. The stream is a sequence of backupParts in gob. The last one has End or Problem; a
// stream without either was cut off.
type backupPart struct {
	Total   int64 // number of rows of the stream; in the first part
	Leases  map[int64]int64
	Rows    []backupRow
	End     *backupEnd
	Problem string // why the stream ends early
}

// backupRow is a row of the log table.
type backupRow struct {
	ID, Flags, Create, Version, Lease, CRC int64
	Key, Value                             []byte
}

type backupEnd struct {
	Metas     map[string]int64
	Rows, Sum int64
}

// partBytes is how many bytes of keys and values a part has when it is sent.
const partBytes = 256 << 10

// Send writes the present state of a database to w, for [Receive]. It delays no writer, but meanwhile
// the WAL is not copied back, so it grows. The receiver learns of an error too.
func Send(ctx context.Context, from sqlitefile.Source, w io.Writer) error {
	to := gob.NewEncoder(w)
	err := from.View(ctx, func(ctx context.Context, c *sqlitefile.Connection) error { return sendRows(ctx, c, from.Path(), to) })
	if err != nil {
		err = fmt.Errorf("back up: %w", err)
		return errors.Join(err, to.Encode(backupPart{Problem: err.Error()}))
	}
	return nil
}

func sendRows(ctx context.Context, c *sqlitefile.Connection, path string, to *gob.Encoder) error {
	end := &backupEnd{}
	var err error
	if end.Metas, err = c.Metas(); err != nil {
		return sqlitefile.Explain(path, err)
	}
	var part backupPart
	if part.Total, err = c.Number(`SELECT count(*) FROM log`); err != nil {
		return sqlitefile.Explain(path, err)
	}
	if part.Leases, err = c.Leases(); err != nil {
		return sqlitefile.Explain(path, err)
	}
	size := 0
	err = c.Query(`SELECT id, key, flags, create_revision, version, lease, crc, value FROM log ORDER BY id`, func(row []driver.Value) error {
		number := func(i int) int64 { n, _ := row[i].(int64); return n }
		r := backupRow{ID: number(0), Flags: number(2), Create: number(3), Version: number(4), Lease: number(5), CRC: number(6)}
		r.Key, _ = row[1].([]byte)
		r.Value, _ = row[7].([]byte)
		end.Rows++
		end.Sum += sqlitefile.RowSum(r.ID)
		part.Rows = append(part.Rows, r)
		if size += len(r.Key) + len(r.Value) + 64; size < partBytes {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		err := to.Encode(part)
		part, size = backupPart{}, 0
		return err
	})
	if sqlitefile.IsSQLError(err) {
		return sqlitefile.Explain(path, err)
	} else if err != nil {
		return err
	}
	part.End = end
	return to.Encode(part)
}

// ErrIncomplete is the error for a stream that ended too early.
var ErrIncomplete = errors.New("the backup ended before it was complete")

// Receive makes a backup from what [Send] writes about the database from. As [Write] does, it
// verifies the file, makes it durable, and then names it to.
func Receive(ctx context.Context, r io.Reader, from, to string, opts Options) (*Result, error) {
	return Place(from, to, func(file string) (*Result, error) {
		if err := receiveRows(r, file, opts.Progress); err != nil {
			return nil, err
		}
		v, err := Verify(ctx, sqlitefile.ClosedFile(file), nil)
		if err == nil {
			err = v.Err()
		}
		if err != nil {
			return nil, err
		}
		return &Result{Revision: v.Revision, Keys: v.Keys}, nil
	})
}

func receiveRows(r io.Reader, file string, progress sqlitefile.Progress) (err error) {
	b, err := sqlitefile.NewBuilder(file)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			b.Abandon()
		}
	}()
	in := gob.NewDecoder(r)
	var total, last int64
	for {
		var part backupPart
		switch err := in.Decode(&part); {
		case err != nil:
			return fmt.Errorf("%w: %w", ErrIncomplete, err)
		case part.Problem != "":
			return fmt.Errorf("the server reports: %s", part.Problem)
		}
		total = max(total, part.Total)
		for id, ttl := range part.Leases {
			if err := b.Grant(id, ttl); err != nil {
				return err
			}
		}
		for _, row := range part.Rows {
			r := sqlitefile.Row{ID: row.ID, Key: string(row.Key), Create: row.Create, Version: row.Version, Lease: row.Lease}
			if r.ID <= last || r.Checksum(row.Value) != row.CRC || r.Flags() != row.Flags {
				return fmt.Errorf("%w: row %d (revision %d) has a bad checksum", sqlitefile.ErrCorrupt, r.ID, r.Revision())
			}
			last = r.ID
			if err := b.Add(&r, row.Value); err != nil {
				return err
			}
		}
		progress.Report(b.Rows, total)
		if part.End == nil {
			continue
		}
		if b.Rows != part.End.Rows || b.Sum != part.End.Sum {
			return fmt.Errorf("%w: %d rows of %d", ErrIncomplete, b.Rows, part.End.Rows)
		}
		metas := sqlitefile.Metas(part.End.Metas)
		maps.Copy(metas, Resume(metas.Given(last)))
		return b.Finish(metas)
	}
}
