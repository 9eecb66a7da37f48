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

// A schemaStep changes a database by one version of the schema, inside a
// transaction that is not its own.
type step func(*sqlitefile.Connection) error

// schemaSteps lead from each version to the next: the first from 1 to 2. There are
// none yet. A release that adds one makes SchemaVersion follow.
var steps []step

// SchemaUpgrade tells of a database that was of an older release.
type Upgrade struct {
	From, To int64
	Backup   string // what it was before, for karve datastore restore of that release
}

// upgradeSchema brings a closed database, whose directory's lock is ours, to the
// newest version of the schema. Before it changes anything it makes a verified
// backup beside it; what is damaged, or newer, is refused untouched. All steps are
// one transaction: a stop at any point leaves the old schema or the new one, and
// the backup before either. With nothing to do it answers nil, and at is called
// with what is done so far, for a test to stop there.
func upgrade(path string, steps []step, opts datastore.Options, at func(string)) (*Upgrade, error) {
	newest := int64(1 + len(steps))
	if v, err := sqlitefile.HeaderSchema(path); err != nil || v >= newest {
		return nil, nil // the opening says what is wrong, and makes one if there is none
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
	// One that is there is of a start that was killed before it changed anything.
	if _, err := backup.Write(context.Background(), sqlitefile.ClosedFile(path), out.Backup, backup.Options{Overwrite: true, Progress: opts.Progress("backing up " + datastore.EngineFile)}); err != nil {
		return nil, fmt.Errorf("schema %d of %s becomes %d, and not without a backup: %w", from, path, newest, err)
	}
	at("backed up")
	stop := sqlitefile.WatchIO(opts.Progress("upgrading the schema of " + datastore.EngineFile))
	err = runSteps(path, from, steps, at)
	stop()
	if err != nil {
		return nil, fmt.Errorf("schema %d of %s becomes %d: %w (as it was before it is in %s)", from, path, newest, err, out.Backup)
	}
	return out, nil
}

func runSteps(path string, from int64, steps []step, at func(string)) error {
	c, err := sqlitefile.Connect(path, url.Values{"_pragma": {"synchronous(FULL)", "wal_autocheckpoint(0)", "cache_size(-8192)"}})
	if err != nil {
		return sqlitefile.Explain(path, err)
	}
	keep := true // the log, which is missed after a stop that was not clean
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
		_ = c.Exec("ROLLBACK") // nothing to roll back if SQLite has done it
		err = sqlitefile.Explain(path, err)
	}
	keeping := c.PersistWAL(keep)
	closing := c.Close()
	at("closed")
	return errors.Join(err, keeping, closing)
}
