// Package kineimport makes the engine's database of a table that k3s-io/kine has written: the state.db
// of k3s, or of Karve's first release.
package kineimport

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/karve-k8s/karve/internal/atomicfile"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// FileName is the name of the kine table in a data directory of k3s and of Karve's first release. Karve
// only reads it.
const FileName = "state.db"

// ErrNotEmpty is the error for an import into a directory that already has data.
var ErrNotEmpty = errors.New("data directory already has data")

// Waiting returns an error that says what to do with a directory that has a kine table and no database of the
// engine, or nil for any other directory.
func Waiting(dir string) error {
	table := filepath.Join(dir, FileName)
	if there, err := directory.Exists(filepath.Join(dir, datastore.EngineFile)); err != nil || there || !hasTable(table) {
		return err
	}
	return fmt.Errorf("%s is a database of kine, as k3s and the first release of Karve have one: karve datastore import %[1]s takes over its keys", table)
}

// hasTable reports whether there is a file with data. A start that did not get any further leaves an empty one.
func hasTable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && (info.Size() > 0 || sqlitefile.HasWAL(path))
}

// Imported describes what Import has done.
type Imported struct {
	To       string // the file that was made
	Revision int64  // of both files
	Keys     int64
	Leases   int64 // number of keys with a TTL, which starts again
}

// Import makes the engine's database, in a locked directory, of a state.db of k3s or kine. It keeps every live key
// with its value, create and mod revision, and the revision of the store; everything before that is compacted. It
// only reads the file, with its WAL; another program may be using it. If the directory has a database with data, the error
// is [ErrNotEmpty].
//
// The new file gets its name when all of it is durable. progress may be nil.
func Import(ctx context.Context, lock *directory.Lock, file string, progress sqlitefile.Progress) (*Imported, error) {
	out := &Imported{To: filepath.Join(lock.Dir(), datastore.EngineFile)}
	if err := checkEngine(lock); err != nil {
		return nil, err
	}
	fresh := out.To + ".importing"
	err := out.build(ctx, file, fresh, progress)
	if err == nil {
		err = atomicfile.Rename(fresh, out.To)
	}
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", file, err)
	}
	return out, nil
}

// build makes the new file.
func (out *Imported) build(ctx context.Context, file, fresh string, progress sqlitefile.Progress) (err error) {
	b, err := sqlitefile.NewBuilder(fresh)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			b.Abandon()
		}
	}()
	err = sqlitefile.ViewAny(file, func(table *sqlitefile.Connection) error {
		t, err := readTable(ctx, table, file, progress)
		if err != nil {
			return err
		}
		// History does not come along, so everything before this revision is compacted.
		out.Revision = max(1, t.revision)
		if err := b.SetMetas(sqlitefile.Metas{"revision": out.Revision, "compact_revision": t.revision}); err != nil {
			return err
		}
		out.Keys, out.Leases, err = t.writeTo(ctx, table, b, progress)
		return err
	})
	if err != nil {
		return err
	}
	return b.Finish(nil)
}

// CopyTable copies a state.db of k3s or kine in one transaction to the file to, which must not exist. It
// only reads the file, with its WAL; another program may be using it.
func CopyTable(ctx context.Context, file, to string) error {
	err := sqlitefile.ViewAny(file, func(c *sqlitefile.Connection) error {
		// SQLite refuses VACUUM in a transaction; VACUUM INTO is one by itself.
		if err := c.Exec("COMMIT"); err != nil {
			return sqlitefile.Explain(file, err)
		}
		return c.ExecContext(ctx, file, "VACUUM INTO ?", to)
	})
	if err != nil {
		return fmt.Errorf("copy %s: %w", file, err)
	}
	return nil
}

// CheckEmpty checks that a locked directory has no data that a new database would replace or hide: neither a kine
// table, nor a database of the engine in which something was written. The error is [ErrNotEmpty].
func CheckEmpty(lock *directory.Lock) error {
	if own := filepath.Join(lock.Dir(), FileName); hasTable(own) {
		return fmt.Errorf("%w: %s (move it away first)", ErrNotEmpty, own)
	}
	return checkEngine(lock)
}

// checkEngine is CheckEmpty for the engine's database.
func checkEngine(lock *directory.Lock) error {
	to := filepath.Join(lock.Dir(), datastore.EngineFile)
	there, err := directory.Exists(to)
	if err != nil {
		return err
	}
	if !there {
		if sqlitefile.HasWAL(to) {
			return fmt.Errorf("%w: %s is missing, but its WAL is there (restore a backup)", sqlitefile.ErrCorrupt, to)
		}
		return nil
	}
	var rows int64
	var metas sqlitefile.Metas
	err = sqlitefile.View(to, func(c *sqlitefile.Connection) (err error) {
		if metas, err = c.Metas(); err != nil {
			return sqlitefile.Explain(to, err)
		}
		rows, err = c.Number(`SELECT count(*) FROM log`)
		return err
	})
	if err != nil {
		return err
	}
	if rows > 0 || metas["revision"] > 1 {
		return fmt.Errorf("%w: %s (choose another --data-dir, or move the file away)", ErrNotEmpty, to)
	}
	// SQLite would take its WAL for that of the new file.
	e, err := datastore.OpenEngine(lock, datastore.Options{BallastBytes: -1})
	if err != nil {
		return err
	}
	if err := e.Close(); err != nil {
		return err
	}
	return sqlitefile.Whole(to)
}
