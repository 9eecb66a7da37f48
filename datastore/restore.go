package datastore

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// RestoreMargin is how far a restore raises the revision, above both that of the
// backup and that of the file it replaces, as far as that can be read. It is
// what etcd's documentation gives (https://etcd.io/docs/v3.6/op-guide/recovery/):
// more than a busy cluster writes in a week, should the replaced file be lost; and
// there is room for 140,000 restores.
const RestoreMargin = 1_000_000_000

// Restore puts a backup in the place of the database in the directory that lock
// holds. The backup is verified first, and only read; what was there stays as
// mvcc.db.before-restore-TIME.
//
// The revision is raised by [RestoreMargin] and all before it is compacted: a
// client that goes on from a resourceVersion of the lost future, or of the time
// before the backup, is told to list again and cannot mistake one for the other.
//
// A stop at any point leaves the old database in place or the new one.
// progress may be nil.
func Restore(ctx context.Context, lock *Lock, file string, progress Progress) (*Copy, error) {
	return restore(ctx, lock, file, progress, func(string) {})
}

// restore says what it has done so far to at, for a test to stop there.
func restore(ctx context.Context, lock *Lock, file string, progress Progress, at func(string)) (*Copy, error) {
	begin := time.Now()
	to, table := filepath.Join(lock.dir, EngineFile), filepath.Join(lock.dir, FileName)
	if same(file, to) {
		return nil, fmt.Errorf("restore %s: it is the database itself", file)
	}
	v, err := Verify(ctx, file, nil)
	if err == nil {
		err = v.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("restore %s: %w", file, err)
	}
	replaced := tableRevision(table)
	seen := max(newestRevision(to), replaced)

	fresh := to + ".restoring"
	if err := removeFile(fresh); err != nil {
		return nil, fmt.Errorf("restore %s: %w", file, err)
	}
	defer removeFile(fresh)
	if err := os.WriteFile(fresh, nil, 0o600); err != nil {
		return nil, fmt.Errorf("restore %s: %w", file, err)
	}
	out := &Copy{From: file, To: to}
	_, err = copyDatabase(ctx, fileOrigin(file), fresh, progress, func(s *scan) ([]meta, error) {
		out.Keys = s.keys
		out.Revision = max(s.revision, s.metas["reserved"], seen) + RestoreMargin
		if out.Revision > maxRevision {
			return nil, fmt.Errorf("%w: revision %d leaves no room", ErrCorrupt, s.revision)
		}
		return []meta{{"revision", out.Revision}, {"compact_revision", out.Revision}, {"reserved", 0}, {"replaced_revision", replaced}}, nil
	})
	if err != nil {
		return nil, fmt.Errorf("restore %s: %w", file, err)
	}

	at("copied")
	suffix := ".before-restore-" + begin.UTC().Format("20060102T150405Z")
	if out.Kept, err = replaceDatabase(lock, fresh, suffix, at); err != nil {
		return nil, fmt.Errorf("restore %s: %w", file, err)
	}
	if info, err := os.Stat(to); err == nil {
		out.Bytes = info.Size()
	}
	out.Took = time.Since(begin)
	return out, nil
}

// replaceDatabase puts a finished database in the place of that in a locked directory,
// and answers what the old one is called then, or nothing if there was none.
func replaceDatabase(lock *Lock, fresh, suffix string, at func(string)) (kept string, err error) {
	to, table := filepath.Join(lock.dir, EngineFile), filepath.Join(lock.dir, FileName)
	if kept, err = keepOld(lock, to, suffix, at); err != nil {
		return "", fmt.Errorf("keep the old database: %w", err)
	}
	at("kept")
	if err := os.Rename(fresh, to); err != nil {
		return "", err
	}
	at("renamed")
	if err := SyncDir(lock.dir); err != nil {
		return "", err
	}
	at("synced")
	if there, _ := exists(table); there {
		// A table that was never converted: the next start must not do it now.
		aside, err := setAside(table, suffix)
		if err != nil {
			return "", fmt.Errorf("it is in place, but %s has to be moved away: %w", table, err)
		}
		if kept == "" {
			kept = aside
		}
	}
	return kept, nil
}

// newestRevision is the highest revision that a database, which may be damaged or
// missing, may have given out: as far as it can be read.
func newestRevision(path string) int64 {
	var revision int64
	// Whatever cannot be read is why there is a margin.
	_ = viewEngine(path, func(c *connection) error {
		if metas, err := c.metas(); err == nil {
			revision = max(revision, metas["revision"], metas["compact_revision"], metas["reserved"])
		}
		if id, err := c.number(`SELECT MAX(id) FROM log`); err == nil {
			revision = max(revision, id>>subBits)
		}
		return nil
	})
	return min(revision, maxRevision-2*RestoreMargin)
}

// tableRevision is the same of a table of kine's. It leaves it in one file.
func tableRevision(path string) int64 {
	if there, err := exists(path); err != nil || !there {
		return 0
	}
	t := kineTable{path: path}
	_ = ownTable(path, t.readRevisions)
	return min(t.revision, maxRevision-2*RestoreMargin)
}

// keepOld gives the database in a locked directory, which may be damaged, a second
// name, and takes away its log, which must not be taken for that of the file that
// comes in its place. It answers the second name, or nothing if there was no
// database.
func keepOld(lock *Lock, path, suffix string, at func(string)) (string, error) {
	kept, err := unusedName(path + suffix)
	if err != nil {
		return "", err
	}
	there, err := exists(path)
	if err != nil {
		return "", err
	}
	if there {
		// A sound one is closed in order, and then is all in one file.
		if e, err := OpenEngine(lock, Options{BallastBytes: -1, CacheBytes: 1 << 20}); err == nil {
			if err := e.Close(); err != nil {
				return "", err
			}
		}
	}
	at("closed")
	if hasLog(path) {
		if err := secondName(path+"-wal", kept+"-wal"); err != nil {
			return "", err
		}
	}
	if there {
		if err := secondName(path, kept); err != nil {
			return "", err
		}
	} else {
		kept = ""
	}
	at("named")
	dir := filepath.Dir(path)
	if err := SyncDir(dir); err != nil {
		return "", err
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
	}
	return kept, SyncDir(dir)
}

// secondName links a file, or copies it where there are no links.
func secondName(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	if err == nil {
		err = w.Sync()
	}
	if e := w.Close(); err == nil {
		err = e
	}
	return err
}

// Compaction tells what a compaction of a file did.
type Compaction struct {
	Path     string `json:"path"`
	Revision int64  `json:"revision"` // compacted to this
	Before   int64  `json:"before"`   // bytes of the file
	After    int64  `json:"after"`
}

// CompactFile compacts the database in a directory whose lock is held to its newest
// revision, and gives all free pages back to the file system. Nobody has it open.
func CompactFile(ctx context.Context, lock *Lock) (*Compaction, error) {
	out := &Compaction{Path: filepath.Join(lock.dir, EngineFile)}
	info, err := os.Stat(out.Path)
	if err != nil {
		return nil, fmt.Errorf("compact datastore: %w", err)
	}
	out.Before = info.Size()
	e, err := OpenEngine(lock, Options{BallastBytes: -1, CacheBytes: 1 << 20})
	if err != nil {
		return nil, err
	}
	out.Revision = e.Revision()
	err = e.Compact(ctx, out.Revision, true)
	if errors.Is(err, ErrCompacted) {
		err = e.waitTidy(ctx) // what an earlier one has left
	}
	if err := errors.Join(err, e.Close()); err != nil {
		return nil, err
	}
	if err := shrink(ctx, out.Path); err != nil {
		return nil, err
	}
	if info, err = os.Stat(out.Path); err != nil {
		return nil, fmt.Errorf("compact datastore: %w", err)
	}
	out.After = info.Size()
	return out, nil
}

// shrink gives the free pages of a closed database back.
func shrink(ctx context.Context, path string) error {
	c, err := (&disk{path: path}).connect(url.Values{"_pragma": {"synchronous(FULL)", "cache_size(-8192)"}})
	if err != nil {
		return explainSQL(path, err)
	}
	for before := int64(math.MaxInt64); ; {
		free, err := c.number(`PRAGMA freelist_count`)
		if err == nil && free > 0 && free < before && ctx.Err() == nil {
			before = free
			err = c.query(`PRAGMA incremental_vacuum(10000)`, func([]driver.Value) error { return nil })
			if err == nil {
				continue
			}
		}
		if e := c.close(); err == nil {
			err = e
		}
		if err != nil {
			return explainSQL(path, err)
		}
		return ctx.Err()
	}
}
