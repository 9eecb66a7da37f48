package admin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/internal/atomicfile"

	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Restore replaces the database in a locked directory with a backup. It verifies the backup first and
// only reads it. The replaced database stays as mvcc.db.before-restore-TIME, of which the newest [keptMax] stay.
//
// Restore raises the revision ([backup.Above]) above that of the backup and, as far as it can be read, that
// of the file it replaces, and compacts everything before. A client that
// continues from a resourceVersion that was seen before must list again, and cannot mistake old state
// for new.
//
// A stop at any point leaves the old database or the new one in place. progress may be nil.
func Restore(ctx context.Context, lock *directory.Lock, file string, progress sqlitefile.Progress) (*backup.Result, error) {
	to := filepath.Join(lock.Dir(), datastore.EngineFile)
	if atomicfile.Same(file, to) {
		return nil, fmt.Errorf("restore %s: this is the database itself", file)
	}
	v, err := backup.Verify(ctx, sqlitefile.ClosedFile(file), nil)
	if err == nil {
		err = v.Err()
	}
	if err == nil {
		_, err = sqlitefile.FinishReplacement(to)
	}
	if err != nil {
		return nil, fmt.Errorf("restore %s: %w", file, err)
	}
	seen := newestRevision(to)
	fresh := to + ".restoring"
	if err := sqlitefile.Remove(fresh); err != nil {
		return nil, fmt.Errorf("restore %s: %w", file, err)
	}
	defer sqlitefile.Remove(fresh)
	if err := os.WriteFile(fresh, nil, 0o600); err != nil {
		return nil, fmt.Errorf("restore %s: %w", file, err)
	}
	out := &backup.Result{From: file, To: to}
	_, err = backup.Copy(ctx, sqlitefile.ClosedFile(file), fresh, progress, func(s *backup.Summary) (sqlitefile.Metas, error) {
		out.Keys = s.Keys
		metas, err := s.Raise(seen)
		if err != nil {
			return nil, err
		}
		out.Revision = metas["revision"]
		return metas, nil
	})
	if err != nil {
		return nil, fmt.Errorf("restore %s: %w", file, err)
	}

	if out.Kept, err = replaceDatabase(lock, fresh, keptSuffix+time.Now().UTC().Format(directory.Stamp)); err != nil {
		return nil, fmt.Errorf("restore %s: %w", file, err)
	}
	if out.Kept != "" {
		out.Removed = removeKept(to, out.Kept)
	}
	if info, err := os.Stat(to); err == nil {
		out.Bytes = info.Size()
	}
	return out, nil
}

// keptSuffix and a time end the name of a database that a restore has replaced.
const keptSuffix = ".before-restore-"

// keptMax is how many replaced databases stay, as of the states before a reset. It is a number and not an age, because the clock of a
// board may be wrong by years.
const keptMax = 5

// removeKept removes what earlier restores have kept, but for the last ones and newest, and returns the paths.
func removeKept(database, newest string) (removed []string) {
	all, _ := directory.Kept(filepath.Dir(database), filepath.Base(database)+keptSuffix) // what cannot be listed stays
	all = slices.DeleteFunc(all, func(path string) bool { return !sqlitefile.IsDatabase(path) })
	for _, path := range directory.Surplus(all, newest, keptMax) {
		if sqlitefile.Remove(path) == nil {
			removed = append(removed, path)
		}
	}
	return removed
}

// replaceDatabase replaces the database in a locked directory with a finished one, and returns the new
// name of the old one, or nothing if there was none. Its errors name what was kept.
func replaceDatabase(lock *directory.Lock, fresh, suffix string) (kept string, err error) {
	to := filepath.Join(lock.Dir(), datastore.EngineFile)
	if kept, err = keepOld(lock, to, suffix); err != nil {
		return "", fmt.Errorf("keep the old database, which is still in place: %w", err)
	}
	if err := sqlitefile.Replace(to, fresh); err != nil {
		if kept != "" {
			err = fmt.Errorf("%w (the old database is kept as %s)", err, kept)
		}
		return kept, err
	}
	return kept, nil
}

// newestRevision returns the highest revision that a database may have given out, as far as it can be
// read. The database may be damaged or missing.
func newestRevision(path string) int64 {
	var revision int64
	_ = sqlitefile.View(path, func(c *sqlitefile.Connection) error {
		metas, _ := c.Metas() // the margin covers what cannot be read
		last, _ := c.Number(`SELECT MAX(id) FROM log`)
		revision = metas.Given(last)
		return nil
	})
	return min(revision, sqlitefile.MaxRevision-2*backup.RevisionMargin)
}

// keepOld gives the database in a locked directory a second name and returns it, or nothing if there
// was no database. The database may be damaged. Its WAL gets a second name too. After an error both have
// their old names only.
func keepOld(lock *directory.Lock, path, suffix string) (kept string, err error) {
	kept, err = directory.Unused(path+suffix, "-wal")
	if err != nil {
		return "", err
	}
	there, err := directory.Exists(path)
	if err != nil {
		return "", err
	}
	if there {
		// Opening and closing makes a sound one whole in one file.
		if e, err := openPlain(lock); err == nil {
			if err := e.Close(); err != nil {
				return "", err
			}
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, sqlitefile.Remove(kept))
		}
	}()
	wal := sqlitefile.HasWAL(path)
	if wal {
		if err := secondName(path+"-wal", kept+"-wal"); err != nil {
			return "", err
		}
	}
	if there {
		if err := secondName(path, kept); err != nil {
			return "", err
		}
	}
	if err := atomicfile.SyncDir(filepath.Dir(path)); err != nil {
		return "", err
	}
	switch {
	case there:
		return kept, nil
	case wal:
		return kept + "-wal", nil
	}
	return "", nil
}

// secondName links a file.
func secondName(from, to string) error {
	if err := os.Link(from, to); err != nil {
		return fmt.Errorf("%w (if the file system has no links, move %s and its -wal elsewhere)", err, from)
	}
	return nil
}
