package kineimport

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// table is what a kine table holds in one transaction, without the values.
type table struct {
	path      string
	revision  int64 // the newest that kine has given out
	compacted int64
	keys      []kineKey // those that are there, by id
	buried    *kineKey  // the deletion that is the newest revision, if it is one
}

// kineKey is the newest row of a key.
type kineKey struct {
	id, create, version, lease int64
	name                       string
	deleted                    bool
}

// kine's own keys (its pkg/server/types.go, pkg/server/compact.go, pkg/drivers/generic/generic.go).
const (
	kineCompactKey  = "compact_rev_key"           // prev_revision is the compaction revision
	kineOtherKey    = "compact_rev_key_apiserver" // what kine makes of the API server's key of the first name
	kineHealthKey   = "/registry/health"          // made by every start of kine
	kineHealthValue = `{"health":"true"}`
	kineFillPrefix  = "gap-" // a row put where a transaction was rolled back
)

// readTable reads the whole table without the values. kine keeps no versions, so they are counted from the
// rows that are left.
func readTable(ctx context.Context, c *sqlitefile.Connection, path string, progress sqlitefile.Progress) (*table, error) {
	t := &table{path: path}
	if n, err := c.Number(`SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'kine'`); err != nil {
		return nil, sqlitefile.Explain(path, err)
	} else if n == 0 {
		return nil, fmt.Errorf("%w: %s has no table named kine", sqlitefile.ErrForeign, path)
	}
	problems, err := c.QuickCheck(ctx, 1)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	} else if err != nil {
		return nil, sqlitefile.Explain(path, err)
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("%w: %s: %s (put a backup in its place)", sqlitefile.ErrCorrupt, path, problems[0])
	}
	if err := t.readRevisions(c); err != nil {
		return nil, err
	}
	return t, t.readRows(ctx, c, progress)
}

func (t *table) readRevisions(c *sqlitefile.Connection) error {
	var err error
	// An old bug of kine could leave two such rows. kine uses the greater one too.
	if t.compacted, err = c.Number(`SELECT MAX(prev_revision) FROM kine WHERE name = 'compact_rev_key'`); err != nil {
		return sqlitefile.Explain(t.path, err)
	}
	if t.revision, err = c.Number(`SELECT MAX(id) FROM kine`); err != nil {
		return sqlitefile.Explain(t.path, err)
	}
	// Revisions whose rows have been deleted since.
	if n, err := c.Number(`SELECT count(*) FROM sqlite_master WHERE name = 'sqlite_sequence'`); err != nil {
		return sqlitefile.Explain(t.path, err)
	} else if n > 0 {
		last, err := c.Number(`SELECT seq FROM sqlite_sequence WHERE name = 'kine'`)
		if err != nil {
			return sqlitefile.Explain(t.path, err)
		}
		t.revision = max(t.revision, last)
	}
	t.revision = max(t.revision, t.compacted)
	if t.revision > sqlitefile.MaxRevision {
		return fmt.Errorf("%w: %s: revision %d is no revision", sqlitefile.ErrCorrupt, t.path, t.revision)
	}
	return nil
}

func (t *table) readRows(ctx context.Context, c *sqlitefile.Connection, progress sqlitefile.Progress) error {
	total, err := c.Number(`SELECT count(*) FROM kine`)
	if err != nil {
		return sqlitefile.Explain(t.path, err)
	}
	newest := map[string]kineKey{}
	var done int64
	err = c.Query(`SELECT id, CAST(name AS BLOB), created, deleted, create_revision, lease FROM kine ORDER BY id`, func(row []driver.Value) error {
		if done++; done%1024 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			progress.Report(done, 2*total) // the values are the other half
		}
		number := func(i int) int64 { n, _ := row[i].(int64); return n }
		name, _ := row[1].([]byte)
		id := number(0)
		if id <= 0 || len(name) == 0 {
			return fmt.Errorf("%w: %s: row %d is no row of kine's", sqlitefile.ErrCorrupt, t.path, id)
		}
		before, known := newest[string(name)]
		k := kineKey{id: id, name: string(name), deleted: number(3) != 0, lease: number(5)}
		switch {
		case k.deleted:
		case number(2) != 0 || number(4) == id:
			k.create, k.version = id, 1
		default: // kine answers the create revision that the row has
			k.create, k.version = number(4), 2 // or more, if what it updated is compacted
			if known && !before.deleted {
				k.version = before.version + 1
				if k.create <= 0 {
					k.create = before.create
				}
			}
			if k.create <= 0 || k.create >= id {
				k.create, k.version = id, 1
			}
		}
		newest[k.name] = k
		return nil
	})
	if err != nil {
		if sqlitefile.IsSQLError(err) {
			return sqlitefile.Explain(t.path, err)
		}
		return err
	}
	delete(newest, kineCompactKey)
	delete(newest, kineOtherKey) // the API server's compactor begins anew without its key
	for _, k := range newest {
		switch {
		case !k.deleted:
			t.keys = append(t.keys, k)
		case k.id == t.revision && !strings.HasPrefix(k.name, kineFillPrefix):
			t.buried = &k
		}
	}
	slices.SortFunc(t.keys, func(a, b kineKey) int { return int(min(max(a.id-b.id, -1), 1)) })
	return nil
}

// maxTTL is etcd's longest lease, in seconds (its server/lease/lessor.go).
const maxTTL = 9_000_000_000

var errNoRow = errors.New("no such row")

// writeTo writes the rows of a new database, and returns how many keys and leases it has written. Each
// lease has one key, because in kine a key has a TTL of its own.
func (t *table) writeTo(ctx context.Context, c *sqlitefile.Connection, b *sqlitefile.Builder, progress sqlitefile.Progress) (keys, leases int64, err error) {
	for i, k := range t.keys {
		if i%256 == 0 {
			if err := ctx.Err(); err != nil {
				return 0, 0, err
			}
			progress.Report(int64(len(t.keys)+i), int64(2*len(t.keys)))
		}
		value, err := t.value(c, k)
		if err != nil {
			return 0, 0, err
		}
		if k.name == kineHealthKey && bytes.Equal(value, []byte(kineHealthValue)) {
			continue
		}
		r := &sqlitefile.Row{ID: sqlitefile.RowID(k.id, 0), Key: k.name, Create: k.create, Version: k.version}
		if k.lease > 0 {
			leases++
			// An id beyond those that people choose, with the TTL in it to recognize it.
			r.Lease = leases<<32 | min(k.lease, 1<<31-1)
			if err := b.Grant(r.Lease, min(k.lease, maxTTL)); err != nil {
				return 0, 0, err
			}
		}
		if err := b.Add(r, value); err != nil {
			return 0, 0, err
		}
		keys++
	}
	if t.buried != nil {
		// A watch may begin at the compaction revision itself.
		if err := b.Add(&sqlitefile.Row{ID: sqlitefile.RowID(t.buried.id, 0), Key: t.buried.name}, nil); err != nil {
			return 0, 0, err
		}
	}
	return keys, leases, nil
}

func (t *table) value(c *sqlitefile.Connection, k kineKey) ([]byte, error) {
	value, err := []byte(nil), errNoRow
	queryErr := c.Query(`SELECT CAST(value AS BLOB) FROM kine WHERE id = ?`, func(row []driver.Value) error {
		value, _ = row[0].([]byte)
		err = nil
		return nil
	}, k.id)
	if queryErr != nil {
		return nil, sqlitefile.Explain(t.path, queryErr)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: row %d: %w", sqlitefile.ErrCorrupt, t.path, k.id, err)
	}
	return value, nil
}
