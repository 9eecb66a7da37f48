package datastore

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// ErrSound: a database that was to be salvaged is not damaged.
var ErrSound = errors.New("nothing is wrong with the database")

// Salvaged tells what was saved of a damaged database.
type Salvaged struct {
	Path     string   `json:"path"`
	Kept     string   `json:"kept"` // what the damaged database is called now
	Revision int64    `json:"revision"`
	Keys     int64    `json:"keys"`
	Rows     int64    `json:"rows"`     // that could be read
	Problems []string `json:"problems"` // what is wrong, and what could not be read
}

// orphanTTL is what keys get, in seconds, whose lease cannot be read: they had one, so
// they must not stay for ever.
const orphanTTL = 3600

// Salvage makes a sound database of what can be read of the damaged one in the directory
// that lock holds: of each key the newest version whose checksum is right. A key whose
// newest version, or whose deletion, cannot be read goes back to the version before. The
// damaged database stays as mvcc.db.before-salvage-TIME, with its log.
//
// The revision is raised as by [Restore]. A database that a start would take is refused
// with [ErrSound]. progress may be nil.
func Salvage(ctx context.Context, lock *Lock, progress Progress) (*Salvaged, error) {
	out, err := salvage(ctx, lock, progress, func(string) {})
	if err != nil {
		return nil, fmt.Errorf("salvage %s: %w", filepath.Join(lock.dir, EngineFile), err)
	}
	return out, nil
}

func salvage(ctx context.Context, lock *Lock, progress Progress, at func(string)) (*Salvaged, error) {
	begin := time.Now()
	out := &Salvaged{Path: filepath.Join(lock.dir, EngineFile)}
	if lockingProcesses(out.Path) != nil {
		return nil, busyWith(out.Path)
	}
	if err := saidByStart(out.Path); err == nil {
		return nil, fmt.Errorf("%w: start the server", ErrSound)
	} else if !errors.Is(err, ErrCorrupt) {
		return nil, err
	} else {
		out.Problems = append(out.Problems, strings.TrimSuffix(err.Error(), " ("+wayOut+")"))
	}
	fresh := out.Path + ".salvaging"
	err := viewLocked(out.Path, func(c *connection) error {
		return out.save(ctx, c, fresh, tableRevision(filepath.Join(lock.dir, FileName)), progress)
	})
	if errors.Is(err, ErrCorrupt) && out.Rows == 0 {
		return nil, fmt.Errorf("%w: nothing in it can be read: restore a backup", ErrCorrupt)
	} else if err != nil {
		return nil, err
	}
	defer removeFile(fresh)
	if v, err := Verify(ctx, fresh, nil); err != nil {
		return nil, err
	} else if err := v.Err(); err != nil {
		return nil, err
	}
	at("copied")
	out.Kept, err = replaceDatabase(lock, fresh, ".before-salvage-"+begin.UTC().Format("20060102T150405Z"), at)
	return out, err
}

// saidByStart is what a start would say of a database, which is not changed.
func saidByStart(path string) error {
	if there, err := exists(path); err != nil || !there {
		return fmt.Errorf("open database: %w", os.ErrNotExist)
	}
	if err := (&disk{path: path}).inspect(schemaVersion); err != nil {
		return err
	}
	return viewLocked(path, func(c *connection) error {
		found := ""
		err := c.query(`PRAGMA quick_check(1)`, func(row []driver.Value) error {
			found, _ = row[0].(string)
			return nil
		})
		if err == nil && found != "ok" {
			return fmt.Errorf("%w: %s: %s", ErrCorrupt, path, found)
		}
		if err != nil {
			return explainSQL(path, err)
		}
		s, err := scanLog(context.Background(), c, path, true, nil)
		if err != nil {
			return err
		}
		return s.err(path)
	})
}

// save builds the new database from what c can read of the old one. replaced is the
// revision of a table of kine's beside it.
func (out *Salvaged) save(ctx context.Context, c *connection, fresh string, replaced int64, progress Progress) (err error) {
	metas, err := c.metas()
	if err != nil {
		out.problem("the meta table cannot be read: %v", err)
	}
	leases := map[int64]int64{}
	err = c.query(`SELECT id, ttl FROM lease`, func(row []driver.Value) error {
		id, _ := row[0].(int64)
		if ttl, _ := row[1].(int64); id > 0 && ttl > 0 {
			leases[id] = ttl
		}
		return nil
	})
	if err != nil {
		out.problem("the leases cannot all be read: %v", err)
	}
	newest, last, err := out.readRows(ctx, c)
	if err != nil {
		return err
	}
	ids := make([]int64, 0, len(newest))
	for _, id := range newest {
		ids = append(ids, id)
	}
	slices.Sort(ids)

	b, err := newBuilder(fresh)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			b.abandon()
		}
	}()
	granted := map[int64]bool{}
	for n, id := range ids {
		v, value, err := rowAt(c, id)
		if err != nil {
			return fmt.Errorf("row %d, which was read before: %w", id, err)
		}
		if v.tombstone() {
			continue
		}
		if v.lease != 0 && !granted[v.lease] {
			granted[v.lease] = true
			ttl := leases[v.lease]
			if ttl == 0 {
				ttl = orphanTTL
				out.problem("lease %d of key %q cannot be read: it gets a TTL of %d s", v.lease, v.key, ttl)
			}
			if err := b.grant(v.lease, ttl); err != nil {
				return err
			}
		}
		if err := b.add(v, value); err != nil {
			return err
		}
		out.Keys++
		progress.report(int64(n), int64(len(ids)))
	}
	seen := max(1, metas["revision"], metas["compact_revision"], metas["reserved"], last>>subBits, replaced)
	out.Revision = min(seen, maxRevision-2*RestoreMargin) + RestoreMargin
	return b.finish(meta{"revision", out.Revision}, meta{"compact_revision", out.Revision}, meta{"reserved", 0}, meta{"replaced_revision", replaced})
}

func (out *Salvaged) problem(format string, args ...any) {
	out.Problems = append(out.Problems, fmt.Sprintf(format, args...))
}

// readRows reads every row that can be read, and answers the row of the newest version
// of each key, and the last row.
func (out *Salvaged) readRows(ctx context.Context, c *connection) (newest map[string]int64, last int64, err error) {
	newest = map[string]int64{}
	next := int64(math.MinInt64)
	for {
		err := c.query(rowsSQL+` ORDER BY id`, func(row []driver.Value) error {
			v, _, err := (&Engine{path: out.Path}).row(row)
			id, _ := row[0].(int64)
			last, next = max(last, id), id+1
			if err != nil {
				key, _ := row[1].([]byte)
				out.problem("row %d (revision %d) of key %q has a bad checksum", id, id>>subBits, key)
				return ctx.Err()
			}
			out.Rows++
			newest[v.key] = v.id
			return ctx.Err()
		}, next)
		if ctx.Err() != nil {
			return nil, 0, ctx.Err()
		}
		if err == nil {
			return newest, last, nil
		}
		from := next
		if next = readableAfter(c, next); next == math.MaxInt64 {
			out.problem("the rows from revision %d on cannot be read: %v", max(0, from>>subBits), err)
			if out.Rows == 0 {
				return nil, 0, ErrCorrupt
			}
			return newest, last, nil
		}
		out.problem("rows of revisions %d to %d cannot be read: %v", max(0, from>>subBits), next>>subBits, err)
	}
}

const rowsSQL = `SELECT id, key, flags, create_revision, version, lease, crc, value FROM log WHERE id >= ?`

// readableAfter is the first id from which on a row can be read after a damaged stretch
// that begins at id, or there is none; MaxInt64 if there is none that can be read.
func readableAfter(c *connection, id int64) int64 {
	readable := func(at int64) bool {
		return c.query(rowsSQL+` ORDER BY id LIMIT 1`, func([]driver.Value) error { return nil }, at) == nil
	}
	bad := max(id, 0)
	good := int64(math.MaxInt64)
	for step := int64(1); bad < math.MaxInt64-step; step *= 2 {
		if readable(bad + step) {
			good = bad + step
			break
		}
		bad += step
		if step > math.MaxInt64/4 {
			break
		}
	}
	for good != math.MaxInt64 && good-bad > 1 {
		if middle := bad + (good-bad)/2; readable(middle) {
			good = middle
		} else {
			bad = middle
		}
	}
	return good
}

// rowAt reads one row.
func rowAt(c *connection, id int64) (v *version, value []byte, err error) {
	err = c.query(rowsSQL+` ORDER BY id LIMIT 1`, func(row []driver.Value) (err error) {
		v, value, err = (&Engine{}).row(row)
		return err
	}, id)
	if err == nil && (v == nil || v.id != id) {
		err = errRowMissing
	}
	return v, value, err
}
