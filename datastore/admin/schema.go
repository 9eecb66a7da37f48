package admin

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// A step changes a database from one version of the schema to the next. Its caller has begun a
// transaction.
type step func(*sqlitefile.Connection) error

// steps lead from each version to the next, the first one from 1 to 2. There are none yet. A release
// that adds one also raises [sqlitefile.SchemaVersion].
var steps []step

// Upgrade describes the upgrade of a database of an older release.
type Upgrade struct {
	From, To int64  // versions of the schema
	Backup   string // copy from before, for karve datastore restore of that release
}

// upgrade changes a closed database to the newest version of the schema. The caller holds the lock of
// its directory. Before the first change it makes a verified backup beside the database. It refuses,
// and does not change, a database that is damaged or newer. All steps are one transaction, so a stop at
// any point leaves the old schema or the new one, and a backup before either. With nothing to do the
// result is nil. It calls at after each step, so that a test can stop there.
func upgrade(path string, steps []step, opts datastore.Options, at func(string)) (*Upgrade, error) {
	newest := int64(1 + len(steps))
	if v, err := sqlitefile.HeaderSchema(path); err != nil || v >= newest {
		return nil, nil // opening the engine reports what is wrong, or makes a missing file
	}
	if _, err := sqlitefile.Inspect(path, newest); err != nil {
		return nil, err
	}
	from, err := sqlitefile.WALSchema(path)
	out := &Upgrade{From: from, To: newest}
	switch {
	case err != nil:
		return nil, err
	case from == newest: // committed, and then killed
		return nil, nil
	case from < 1:
		return nil, fmt.Errorf("%w: %s has schema %d, which no release wrote (restore a backup)", sqlitefile.ErrCorrupt, path, from)
	}
	out.Backup = fmt.Sprintf("%s.schema-%d", path, from)
	// Overwrite: one that exists is from a start that was killed before it changed anything.
	if _, err := backup.Write(context.Background(), sqlitefile.ClosedFile(path), out.Backup, backup.Options{Overwrite: true, Progress: opts.Progress("backing up " + datastore.EngineFile)}); err != nil {
		return nil, fmt.Errorf("upgrade %s from schema %d to %d: it needs a backup first: %w", path, from, newest, err)
	}
	at("backed up")
	stop := sqlitefile.WatchIO(opts.Progress("upgrading the schema of " + datastore.EngineFile))
	err = runSteps(path, from, steps, at)
	stop()
	if err != nil {
		return nil, fmt.Errorf("upgrade %s from schema %d to %d: %w (a copy from before is in %s)", path, from, newest, err, out.Backup)
	}
	return out, nil
}

func runSteps(path string, from int64, steps []step, at func(string)) error {
	c, err := sqlitefile.Connect(path, url.Values{"_pragma": {"synchronous(FULL)", "wal_autocheckpoint(0)", "cache_size(-8192)"}})
	if err != nil {
		return sqlitefile.Explain(path, err)
	}
	keep := true // the WAL: after an unclean stop a start refuses the database without it
	err = func() error {
		metas, err := c.Metas()
		if err != nil {
			return err
		}
		if metas.Closed() {
			keep = false
		}
		if err := c.Exec("BEGIN IMMEDIATE"); err != nil {
			return err
		}
		at("begun")
		for _, step := range steps[from-1:] {
			if err := step(c); err != nil {
				return err
			}
		}
		if err := c.Exec(fmt.Sprintf("PRAGMA user_version = %d", 1+len(steps))); err != nil {
			return err
		}
		at("changed")
		if err := c.Exec("COMMIT"); err != nil {
			return err
		}
		at("committed")
		return nil
	}()
	if err != nil {
		_ = c.Exec("ROLLBACK") // fails if SQLite has rolled back by itself
		err = sqlitefile.Explain(path, err)
	}
	keeping := c.PersistWAL(keep)
	closing := c.Close()
	at("closed")
	return errors.Join(err, keeping, closing)
}
