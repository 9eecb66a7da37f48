// Package kineimport makes the engine's database of a table that k3s-io/kine has written: the state.db
// of k3s, or of Karve's first release.
package kineimport

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/karve-k8s/karve/internal/atomicfile"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// FileName is the name of the kine table in a data directory of k3s and of Karve's first release. Karve
// only reads it, to convert it.
const FileName = "state.db"

// ErrTwoStores is the error for a directory that has a kine table, and a database of the engine that was
// not made from it. Neither is changed.
var ErrTwoStores = errors.New("two databases in one data directory")

// ErrNotEmpty is the error for an import into a directory that already has data.
var ErrNotEmpty = errors.New("data directory already has data")

// ConvertedSuffix is the end of the name of a converted [FileName].
const ConvertedSuffix = ".converted"

// Conversion describes the conversion of a kine table.
type Conversion struct {
	From     string        `json:"from"`           // the file that was read
	To       string        `json:"to"`             // the file that was made
	Kept     string        `json:"kept,omitempty"` // new name of From, if it was renamed
	Revision int64         `json:"revision"`       // of both
	Keys     int64         `json:"keys"`
	Leases   int64         `json:"leases"` // number of keys with a TTL, which starts again
	Took     time.Duration `json:"-"`
}

// Convert makes the engine's database of the state.db in a locked directory, once. It keeps every live
// key with its value, create and mod revision, and the revision of the store; everything before that is
// compacted. The old file stays as state.db.converted. With nothing to convert the result is nil.
//
// After a stop at any point, the next call begins again or has nothing to do: the new file gets its name
// in one step when all of it is durable, and the old one is renamed after that. progress may be nil.
func Convert(ctx context.Context, lock *directory.Lock, progress sqlitefile.Progress) (*Conversion, error) {
	begin := time.Now()
	from, to := filepath.Join(lock.Dir(), FileName), filepath.Join(lock.Dir(), datastore.EngineFile)
	fresh := to + ".converting"
	if _, err := sqlitefile.FinishReplacement(to); err != nil {
		return nil, fmt.Errorf("convert database: %w", err)
	}
	// A power cut may have left these: they are unfinished, or not needed any more.
	for _, name := range []string{fresh, to + ".importing", to + ".restoring", to + ".salvaging", to + ".migrating"} {
		if err := sqlitefile.Remove(name); err != nil {
			return nil, fmt.Errorf("convert database: %w", err)
		}
	}
	old, err := os.Stat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("convert database: %w", err)
	}
	if old.Size() == 0 && !sqlitefile.HasWAL(from) {
		return nil, nil // a start that did not get any further has made it
	}
	converted, err := directory.Exists(to)
	if err != nil {
		return nil, fmt.Errorf("convert database: %w", err)
	}
	if !converted && sqlitefile.HasWAL(to) {
		return nil, fmt.Errorf("%w: %s is missing, but its WAL is there (restore a backup)", sqlitefile.ErrCorrupt, to)
	}
	if converted {
		return nil, finishConversion(ctx, from, to)
	}

	c := &Conversion{From: from, To: to}
	own := func(body func(*sqlitefile.Connection) error) error { return ownTable(from, body) }
	if err := c.build(ctx, fresh, own, progress); err != nil {
		return nil, fmt.Errorf("convert database %s: %w", from, err)
	}
	if err := atomicfile.Rename(fresh, to); err != nil {
		return nil, fmt.Errorf("convert database: %w", err)
	}
	if c.Kept, err = sqlitefile.SetAside(from, ConvertedSuffix); err != nil {
		return nil, err
	}
	c.Took = time.Since(begin)
	return c, nil
}

// build makes the new file of the table that source opens. source may open it again, and then build
// begins again.
func (c *Conversion) build(ctx context.Context, fresh string, source func(func(*sqlitefile.Connection) error) error, progress sqlitefile.Progress) (err error) {
	var b *sqlitefile.Builder
	defer func() {
		if err != nil && b != nil {
			b.Abandon()
		}
	}()
	err = source(func(table *sqlitefile.Connection) error {
		if b != nil {
			b.Abandon()
		}
		var err error
		if b, err = sqlitefile.NewBuilder(fresh); err != nil {
			return err
		}
		t, err := readTable(ctx, table, c.From, progress)
		if err != nil {
			return err
		}
		// History does not come along, so everything before this revision is compacted.
		c.Revision = max(1, t.revision)
		err = b.SetMetas(sqlitefile.Metas{"revision": c.Revision, "compact_revision": t.revision, "replaced_revision": t.revision})
		if err != nil {
			return err
		}
		c.Keys, c.Leases, err = t.writeTo(ctx, table, b, progress)
		return err
	})
	if err != nil {
		return err
	}
	return b.Finish(nil)
}

// ownTable opens the state.db of a locked directory. Closing it leaves it whole in one file.
func ownTable(path string, body func(*sqlitefile.Connection) error) error {
	c, err := sqlitefile.Connect(path, url.Values{"_pragma": {"synchronous(FULL)", "busy_timeout(10000)"}})
	if err != nil {
		return sqlitefile.Explain(path, err)
	}
	err = body(c)
	if e := c.Close(); err == nil && e != nil {
		err = sqlitefile.Explain(path, e)
	}
	if err != nil {
		return err
	}
	return sqlitefile.Whole(path)
}

// finishConversion renames the old database if the new one was made from it.
func finishConversion(ctx context.Context, from, to string) error {
	var replaced int64
	err := sqlitefile.View(to, func(c *sqlitefile.Connection) error {
		metas, err := c.Metas()
		replaced = metas["replaced_revision"]
		return err
	})
	if err != nil {
		return err
	}
	var t table
	err = ownTable(from, func(c *sqlitefile.Connection) error {
		tables, err := c.Number(`SELECT count(*) FROM sqlite_master WHERE name = 'kine'`)
		if err != nil || tables == 0 {
			return err
		}
		t.path = from
		return t.readRevisions(c)
	})
	if err != nil {
		return fmt.Errorf("convert database %s: %w", from, err)
	}
	if t.revision != replaced {
		return fmt.Errorf("%w: %s was not made from %s: move away the one that you do not want to keep, with its -wal", ErrTwoStores, to, from)
	}
	_, err = sqlitefile.SetAside(from, ConvertedSuffix)
	return err
}

// Import makes the engine's database, in a locked directory, of a state.db of k3s or kine somewhere else.
// [Convert] says what it keeps. It only reads the file, with its WAL; another program may be using it. If
// the directory has data, the error is [ErrNotEmpty].
func Import(ctx context.Context, lock *directory.Lock, file string, progress sqlitefile.Progress) (*Conversion, error) {
	begin := time.Now()
	to := filepath.Join(lock.Dir(), datastore.EngineFile)
	if err := CheckEmpty(lock); err != nil {
		return nil, err
	}
	fresh := to + ".importing"
	c := &Conversion{From: file, To: to}
	source := func(body func(*sqlitefile.Connection) error) error { return sqlitefile.ViewAny(file, body) }
	if err := c.build(ctx, fresh, source, progress); err != nil {
		return nil, fmt.Errorf("import %s: %w", file, err)
	}
	if err := atomicfile.Rename(fresh, to); err != nil {
		return nil, fmt.Errorf("import %s: %w", file, err)
	}
	c.Took = time.Since(begin)
	return c, nil
}

// CopyTable copies a state.db of k3s or kine in one transaction to the file to, which must not exist. It
// only reads the file, with its WAL; another program may be using it.
func CopyTable(ctx context.Context, file, to string) error {
	err := sqlitefile.ViewAny(file, func(c *sqlitefile.Connection) error {
		// SQLite refuses VACUUM in a transaction; VACUUM INTO is one by itself.
		if err := c.Exec("COMMIT"); err != nil {
			return sqlitefile.Explain(file, err)
		}
		if err := sqlitefile.Remove(to); err != nil { // from an earlier, inconsistent read
			return err
		}
		return c.ExecContext(ctx, file, "VACUUM INTO ?", to)
	})
	if err != nil {
		return fmt.Errorf("copy %s: %w", file, err)
	}
	return nil
}

// CheckEmpty checks that a locked directory has no data that an import would replace. A database of the
// engine in which nothing was ever written is no data. The error is [ErrNotEmpty].
func CheckEmpty(lock *directory.Lock) error {
	own, to := filepath.Join(lock.Dir(), FileName), filepath.Join(lock.Dir(), datastore.EngineFile)
	if info, err := os.Stat(own); err == nil && (info.Size() > 0 || sqlitefile.HasWAL(own)) {
		return fmt.Errorf("%w: %s, which the next start of the server converts (move it away first)", ErrNotEmpty, own)
	}
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

// Revision returns the highest revision that a kine table may have given out, as far as it can be read, or
// 0 if there is no table. It leaves the table whole in one file.
func Revision(path string) int64 {
	if there, err := directory.Exists(path); err != nil || !there {
		return 0
	}
	t := table{path: path}
	_ = ownTable(path, t.readRevisions)
	return min(t.revision, sqlitefile.MaxRevision)
}
