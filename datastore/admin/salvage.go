package admin

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// ErrSound is the error of a salvage of a database that is not damaged.
var ErrSound = errors.New("nothing is wrong with the database")

// Salvaged describes what Salvage has saved of a damaged database.
type Salvaged struct {
	Path     string   `json:"path"`
	Kept     string   `json:"kept"` // new name of the damaged database
	Revision int64    `json:"revision"`
	Keys     int64    `json:"keys"`
	Rows     int64    `json:"rows"`     // number of rows that could be read
	Problems []string `json:"problems"` // what is damaged or could not be read

	lost []stretch
}

// stretch is the ids of rows that SQLite cannot read, without the last one.
type stretch struct{ from, to int64 }

// orphanTTL is the TTL in seconds of keys whose lease cannot be read. They had a lease, so they must not
// stay for ever.
const orphanTTL = 3600

// Salvage replaces the damaged database in a locked directory with what can be read of it: the newest
// version of each key whose checksum is right. If the newest version or the deletion of a key cannot be
// read, the key goes back to the version before. The damaged database stays as
// mvcc.db.before-salvage-TIME, with its WAL. Salvage names such keys, as far as the damaged pages still have them.
//
// Salvage raises the revision as [Restore] does. It refuses a database that a start would accept with
// [ErrSound]. progress may be nil.
func Salvage(ctx context.Context, lock *directory.Lock, progress sqlitefile.Progress) (_ *Salvaged, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("salvage %s: %w", filepath.Join(lock.Dir(), datastore.EngineFile), err)
		}
	}()
	begin := time.Now()
	out := &Salvaged{Path: filepath.Join(lock.Dir(), datastore.EngineFile)}
	if _, err := sqlitefile.FinishReplacement(out.Path); err != nil {
		return nil, err
	}
	if err := startError(out.Path); err == nil {
		return nil, fmt.Errorf("%w: start the server", ErrSound)
	} else if !errors.Is(err, sqlitefile.ErrCorrupt) {
		return nil, err
	} else {
		out.Problems = append(out.Problems, strings.TrimSuffix(err.Error(), " ("+sqlitefile.Remedy+")"))
	}
	fresh := out.Path + ".salvaging"
	err = sqlitefile.ViewLocked(out.Path, func(c *sqlitefile.Connection) error {
		return out.save(ctx, c, fresh, progress)
	})
	if errors.Is(err, sqlitefile.ErrCorrupt) && out.Rows == 0 {
		return nil, fmt.Errorf("%w, and none of it can be read: restore a backup", sqlitefile.ErrCorrupt)
	} else if err != nil {
		return nil, err
	}
	defer sqlitefile.Remove(fresh)
	if v, err := backup.Verify(ctx, sqlitefile.ClosedFile(fresh), nil); err != nil {
		return nil, err
	} else if err := v.Err(); err != nil {
		return nil, err
	}
	out.Kept, err = replaceDatabase(lock, fresh, ".before-salvage-"+begin.UTC().Format(directory.Stamp))
	return out, err
}

// startError returns the error with which a start would refuse a database, and does not change it.
func startError(path string) error {
	if there, err := directory.Exists(path); err != nil || !there {
		return fmt.Errorf("open database: %w", os.ErrNotExist)
	}
	if err := sqlitefile.Inspect(path); err != nil {
		return err
	}
	return sqlitefile.ViewLocked(path, func(c *sqlitefile.Connection) error {
		problems, err := c.QuickCheck(context.Background(), 1)
		if err != nil {
			return sqlitefile.Explain(path, err)
		}
		if len(problems) > 0 {
			return fmt.Errorf("%w: %s: %s", sqlitefile.ErrCorrupt, path, problems[0])
		}
		s, err := backup.Summarize(context.Background(), c, path, true, nil)
		if err != nil {
			return err
		}
		return s.Err(path)
	})
}

// save builds the new database from what c can read of the old one.
func (out *Salvaged) save(ctx context.Context, c *sqlitefile.Connection, fresh string, progress sqlitefile.Progress) (err error) {
	metas, err := c.Metas()
	if err != nil {
		out.problem("the meta table cannot be read: %v", err)
	}
	leases := map[int64]int64{}
	err = c.Query(`SELECT id, ttl FROM lease`, func(row []driver.Value) error {
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
	out.lost = append(out.lost, stretch{last + 1, math.MaxInt64}) // in the WAL, after a damaged frame
	if err := out.nameLost(newest); err != nil {
		return err
	}
	ids := make([]int64, 0, len(newest))
	for _, id := range newest {
		ids = append(ids, id)
	}
	slices.Sort(ids)

	b, err := sqlitefile.NewBuilder(fresh)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			b.Abandon()
		}
	}()
	granted := map[int64]bool{}
	for n, id := range ids {
		r, value, err := c.RowAt(id)
		if err != nil {
			return fmt.Errorf("row %d, which was read before: %w", id, err)
		}
		if r.Tombstone() {
			continue
		}
		if r.Lease != 0 && !granted[r.Lease] {
			granted[r.Lease] = true
			ttl := leases[r.Lease]
			if ttl == 0 {
				ttl = orphanTTL
				out.problem("lease %d of key %q cannot be read: its new TTL is %d s", r.Lease, r.Key, ttl)
			}
			if err := b.Grant(r.Lease, ttl); err != nil {
				return err
			}
		}
		if err := b.Add(&r, value); err != nil {
			return err
		}
		out.Keys++
		progress.Report(int64(n), int64(len(ids)))
	}
	out.Revision = backup.Above(min(metas.Given(last), sqlitefile.MaxRevision-2*backup.RevisionMargin))
	return b.Finish(sqlitefile.Metas{"revision": out.Revision, "compact_revision": out.Revision, "reserved": 0})
}

func (out *Salvaged) problem(format string, args ...any) {
	out.Problems = append(out.Problems, fmt.Sprintf(format, args...))
}

// readRows reads every row that can be read. It returns the id of the newest row of each key, and the id
// of the last row.
func (out *Salvaged) readRows(ctx context.Context, c *sqlitefile.Connection) (newest map[string]int64, last int64, err error) {
	newest = map[string]int64{}
	next := int64(sqlitefile.AllRows)
	for {
		err := c.EachRow(next, func(r sqlitefile.Row, _ []byte, bad error) error {
			last, next = max(last, r.ID), r.ID+1
			if bad != nil {
				out.problem("row %d (revision %d) of key %q has a bad checksum", r.ID, r.Revision(), r.Key)
				return ctx.Err()
			}
			out.Rows++
			newest[r.Key] = r.ID
			return ctx.Err()
		})
		if ctx.Err() != nil {
			return nil, 0, ctx.Err()
		}
		if err == nil {
			return newest, last, nil
		}
		from := next
		next = readableAfter(c, next)
		out.lost = append(out.lost, stretch{from, next})
		if next == math.MaxInt64 {
			out.problem("the rows from revision %d on cannot be read: %v", max(0, sqlitefile.RevisionOf(from)), err)
			if out.Rows == 0 {
				return nil, 0, sqlitefile.ErrCorrupt
			}
			return newest, last, nil
		}
		out.problem("rows of revisions %d to %d cannot be read: %v", max(0, sqlitefile.RevisionOf(from)), sqlitefile.RevisionOf(next), err)
	}
}

// nameLost names the keys whose newest rows SQLite cannot read, as far as their pages still have them.
func (out *Salvaged) nameLost(newest map[string]int64) error {
	lost := map[string]bool{}
	err := sqlitefile.Remains(out.Path, func(id int64, key string) {
		if id > newest[key] && slices.ContainsFunc(out.lost, func(s stretch) bool { return id >= s.from && id < s.to }) {
			lost[key] = true
		}
	})
	for _, key := range slices.Sorted(maps.Keys(lost)) {
		if id := newest[key]; id > 0 {
			out.problem("key %q goes back to revision %d", key, sqlitefile.RevisionOf(id))
		} else {
			out.problem("key %q is lost", key)
		}
	}
	return err
}

// readableAfter returns the first id from which SQLite can read the log table after a damaged stretch
// that begins at id, or MaxInt64 if there is none.
func readableAfter(c *sqlitefile.Connection, id int64) int64 {
	readable := func(at int64) bool {
		_, _, err := c.RowAt(at)
		return err == nil || !sqlitefile.IsSQLError(err) // a bad checksum is no reason to step over a row
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
