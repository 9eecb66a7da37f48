package datastore

import (
	"context"
	"database/sql/driver"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
)

// A backup of a running engine is sent as rows, and the receiver makes a database of them:
// so it is written by the receiver's user, in the receiver's directory, and a small data
// directory needs no room for a copy. The stream is a sequence of backupParts in gob; the
// last one has End or Problem, and one without either was cut off.
type backupPart struct {
	Total   int64 // rows that come; in the first part
	Leases  map[int64]int64
	Rows    []backupRow
	End     *backupEnd
	Problem string // why there is no more
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

// partBytes is how much of keys and values a part has before it is sent.
const partBytes = 256 << 10

// SendBackup writes the state of the engine as of now to w, for [ReceiveBackup]. Writers
// are not held up; the log is not copied back meanwhile, so it grows. What goes wrong is
// told to the receiver, too.
func (e *Engine) SendBackup(ctx context.Context, w io.Writer) error {
	if e.disk == nil {
		return errNoFile
	}
	to := gob.NewEncoder(w)
	err := e.disk.longRead(ctx, func(ctx context.Context, c *connection) error { return sendRows(ctx, c, e.path, to) })
	if err != nil {
		err = fmt.Errorf("back up: %w", err)
		return errors.Join(err, to.Encode(backupPart{Problem: err.Error()}))
	}
	return nil
}

func sendRows(ctx context.Context, c *connection, path string, to *gob.Encoder) error {
	end := &backupEnd{}
	var err error
	if end.Metas, err = c.metas(); err != nil {
		return explainSQL(path, err)
	}
	part := backupPart{Leases: map[int64]int64{}}
	if part.Total, err = c.number(`SELECT count(*) FROM log`); err != nil {
		return explainSQL(path, err)
	}
	err = c.query(`SELECT id, ttl FROM lease`, func(row []driver.Value) error {
		id, _ := row[0].(int64)
		part.Leases[id], _ = row[1].(int64)
		return nil
	})
	if err != nil {
		return explainSQL(path, err)
	}
	size := 0
	err = c.query(`SELECT id, key, flags, create_revision, version, lease, crc, value FROM log ORDER BY id`, func(row []driver.Value) error {
		number := func(i int) int64 { n, _ := row[i].(int64); return n }
		r := backupRow{ID: number(0), Flags: number(2), Create: number(3), Version: number(4), Lease: number(5), CRC: number(6)}
		r.Key, _ = row[1].([]byte)
		r.Value, _ = row[7].([]byte)
		end.Rows++
		end.Sum += rowSum(r.ID)
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
	if sqliteCode(err) != 0 {
		return explainSQL(path, err)
	} else if err != nil {
		return err
	}
	part.End = end
	return to.Encode(part)
}

// ErrIncomplete: a stream ended before the backup that it brought was complete.
var ErrIncomplete = errors.New("the backup ended before it was complete")

// ReceiveBackup makes a backup of what [Engine.SendBackup] of the database from writes: as
// [BackupFile] does, verified, durable and then named to.
func ReceiveBackup(ctx context.Context, r io.Reader, from, to string, opts BackupOptions) (*Copy, error) {
	return writeBackup(from, to, opts, func(file string) (*Copy, error) {
		if err := receiveRows(r, file, opts.Progress); err != nil {
			return nil, err
		}
		v, err := Verify(ctx, file, nil)
		if err == nil {
			err = v.Err()
		}
		if err != nil {
			return nil, err
		}
		return &Copy{Revision: v.Revision, Keys: v.Keys}, nil
	})
}

func receiveRows(r io.Reader, file string, progress Progress) (err error) {
	b, err := newBuilder(file)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			b.abandon()
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
			return fmt.Errorf("the server says: %s", part.Problem)
		}
		total = max(total, part.Total)
		for id, ttl := range part.Leases {
			if err := b.grant(id, ttl); err != nil {
				return err
			}
		}
		for _, row := range part.Rows {
			v := &version{id: row.ID, key: string(row.Key), create: row.Create, version: row.Version, lease: row.Lease, size: int32(len(row.Value))}
			if v.id <= last || v.checksum(row.Value) != row.CRC || v.flags() != row.Flags {
				return fmt.Errorf("%w: row %d (revision %d) has a bad checksum", ErrCorrupt, v.id, v.revision())
			}
			last = v.id
			if err := b.add(v, row.Value); err != nil {
				return err
			}
		}
		progress.report(b.rows, total)
		if part.End == nil {
			continue
		}
		if b.rows != part.End.Rows || b.sum != part.End.Sum {
			return fmt.Errorf("%w: %d rows of %d", ErrIncomplete, b.rows, part.End.Rows)
		}
		var metas []meta
		for name, value := range part.End.Metas {
			metas = append(metas, meta{name, value})
		}
		return b.finish(metas...)
	}
}
