package datastore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"os"

	"modernc.org/sqlite"
)

// A schemaStep changes a database by one version of the schema, inside a
// transaction that is not its own.
type schemaStep func(*connection) error

// schemaSteps lead from each version to the next: the first from 1 to 2. There are
// none yet. A release that adds one makes schemaVersion follow.
var schemaSteps []schemaStep

// SchemaUpgrade tells of a database that was of an older release.
type SchemaUpgrade struct {
	From, To int64
	Backup   string // what it was before, for karve datastore restore of that release
}

// upgradeSchema brings a closed database, whose directory's lock is ours, to the
// newest version of the schema. Before it changes anything it makes a verified
// backup beside it; what is damaged, or newer, is refused untouched. All steps are
// one transaction: a stop at any point leaves the old schema or the new one, and
// the backup before either. With nothing to do it answers nil, and at is called
// with what is done so far, for a test to stop there.
func upgradeSchema(path string, steps []schemaStep, opts Options, at func(string)) (*SchemaUpgrade, error) {
	newest := int64(1 + len(steps))
	if v, err := headerSchema(path); err != nil || v >= newest {
		return nil, nil // the opening says what is wrong, and makes one if there is none
	}
	if err := (&disk{path: path}).inspect(newest); err != nil {
		return nil, err
	}
	from, err := logSchema(path)
	out := &SchemaUpgrade{From: from, To: newest}
	switch {
	case err != nil:
		return nil, err
	case from == newest: // committed, and then killed
		return nil, nil
	case from < 1:
		return nil, fmt.Errorf("%w: %s has schema %d, which no release wrote (restore a backup)", ErrCorrupt, path, from)
	}
	out.Backup = fmt.Sprintf("%s.schema-%d", path, from)
	// One that is there is of a start that was killed before it changed anything.
	if _, err := BackupFile(context.Background(), path, out.Backup, BackupOptions{Overwrite: true, Progress: opts.progress("backing up " + EngineFile)}); err != nil {
		return nil, fmt.Errorf("schema %d of %s becomes %d, and not without a backup: %w", from, path, newest, err)
	}
	at("backed up")
	stop := watchIO(opts.progress("upgrading the schema of " + EngineFile))
	err = runSteps(path, from, steps, at)
	stop()
	if err != nil {
		return nil, fmt.Errorf("schema %d of %s becomes %d: %w (as it was before it is in %s)", from, path, newest, err, out.Backup)
	}
	return out, nil
}

func runSteps(path string, from int64, steps []schemaStep, at func(string)) error {
	c, err := (&disk{path: path}).connect(url.Values{"_pragma": {"synchronous(FULL)", "wal_autocheckpoint(0)", "cache_size(-8192)"}})
	if err != nil {
		return explainSQL(path, err)
	}
	keep := 1 // the log, which is missed after a stop that was not clean
	err = func() error {
		metas, err := c.metas()
		if err != nil {
			return err
		}
		if stopStateOf(metas).closed() {
			keep = 0
		}
		if err := c.exec("BEGIN IMMEDIATE"); err != nil {
			return err
		}
		at("begun")
		for _, step := range steps[from-1:] {
			if err := step(c); err != nil {
				return err
			}
		}
		if err := c.exec(fmt.Sprintf("PRAGMA user_version = %d", 1+len(steps))); err != nil {
			return err
		}
		at("changed")
		if err := c.exec("COMMIT"); err != nil {
			return err
		}
		at("committed")
		return nil
	}()
	if err != nil {
		_ = c.exec("ROLLBACK") // nothing to roll back if SQLite has done it
		err = explainSQL(path, err)
	}
	_, keeping := c.Conn.(sqlite.FileControl).FileControlPersistWAL("main", keep)
	closing := c.close()
	at("closed")
	return errors.Join(err, keeping, closing)
}

// headerSchema is the version of the schema in SQLite's header of a file that
// nobody has open, without its log.
func headerSchema(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var version [4]byte
	_, err = f.ReadAt(version[:], 60) // https://sqlite.org/fileformat2.html#user_version_number
	return int64(binary.BigEndian.Uint32(version[:])), err
}

// logSchema is the version of the schema, as SQLite reads it: with the log.
func logSchema(path string) (version int64, err error) {
	err = viewLocked(path, func(c *connection) (err error) {
		if version, err = c.number("PRAGMA user_version"); err != nil {
			return explainSQL(path, err)
		}
		return nil
	})
	return version, err
}

func newerSchema(path string, version int64) error {
	return fmt.Errorf("%w: %s has schema %d, this release knows %d (use the newer release, or restore a backup of this one)", ErrNewerSchema, path, version, schemaVersion)
}
