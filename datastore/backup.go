package datastore

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// ErrExists: the file that a backup would make is there already.
var ErrExists = errors.New("file is there already")

// Copy tells of a backup that was made, or of one that was put in place.
type Copy struct {
	From     string        `json:"from"`
	To       string        `json:"to"`
	Kept     string        `json:"kept,omitempty"` // what the file that To replaced is called now
	Revision int64         `json:"revision"`
	Keys     int64         `json:"keys"`
	Bytes    int64         `json:"bytes"`
	Took     time.Duration `json:"-"`
}

// BackupOptions configure a backup. The zero value never overwrites.
type BackupOptions struct {
	Overwrite bool     // replace a file that is there
	Progress  Progress // may be nil
}

// Backup writes the state of a running engine as of now to the file to. See
// [BackupFile]. Of one in mode Memory the history stays behind.
func (e *Engine) Backup(ctx context.Context, to string, opts BackupOptions) (*Copy, error) {
	if e.disk != nil {
		return backupOrigin(ctx, e.origin(), to, opts)
	}
	c, err := e.Contents(ctx)
	if err != nil {
		return nil, err
	}
	return c.WriteFile(to, opts)
}

// BackupFile writes the state of the engine's database at from to the file to. Beside a
// running server the error is [ErrBusy]: [Engine.SendBackup] and [ReceiveBackup] work then.
//
// The backup is a database as a clean stop leaves it, without free pages, mode
// 0600. It gets its name when every row's checksum has been verified and all of
// it is on the disk.
func BackupFile(ctx context.Context, from, to string, opts BackupOptions) (*Copy, error) {
	return backupOrigin(ctx, fileOrigin(from), to, opts)
}

func backupOrigin(ctx context.Context, from origin, to string, opts BackupOptions) (*Copy, error) {
	return writeBackup(from.path, to, opts, func(file string) (*Copy, error) {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			return nil, err
		}
		s, err := copyDatabase(ctx, from, file, opts.Progress, nil)
		if err != nil {
			return nil, err
		}
		return &Copy{Revision: s.revision, Keys: s.keys}, nil
	})
}

// writeBackup has a sound database made under another name, in a directory of its own
// beside to, and then gives it its name.
func writeBackup(from, to string, opts BackupOptions, make func(file string) (*Copy, error)) (_ *Copy, err error) {
	begin := time.Now()
	defer func() {
		if err != nil {
			err = fmt.Errorf("back up: %w", err)
		}
	}()
	if to, err = filepath.Abs(to); err != nil {
		return nil, err
	}
	if taken, err := exists(to); err != nil {
		return nil, err
	} else if taken {
		if !opts.Overwrite {
			return nil, fmt.Errorf("%w: %s", ErrExists, to)
		}
		if same(from, to) {
			return nil, fmt.Errorf("%s is the database itself", to)
		}
	}
	unfinished, err := newPartial(to)
	if err != nil {
		return nil, err
	}
	defer unfinished.remove()
	file := filepath.Join(unfinished.dir, "copy")
	out, err := make(file)
	if err != nil {
		return nil, err
	}
	if err := GiveName(file, to, opts.Overwrite); err != nil {
		return nil, err
	}
	out.From, out.To, out.Took = from, to, time.Since(begin)
	if info, err := os.Stat(to); err == nil {
		out.Bytes = info.Size()
	}
	return out, nil
}

// GiveName gives a finished file its name, in the same directory or file system, and makes
// the name durable. Without overwrite, a file that is there is [ErrExists].
func GiveName(file, to string, overwrite bool) error {
	if overwrite {
		if err := os.Rename(file, to); err != nil {
			return err
		}
		return SyncDir(filepath.Dir(to))
	}
	// A link never replaces; where there are none, the check has to do.
	err := os.Link(file, to)
	switch {
	case err == nil:
		err = os.Remove(file)
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%w: %s", ErrExists, to)
	default:
		if taken, statErr := exists(to); statErr != nil || taken {
			return fmt.Errorf("%w: %s", ErrExists, to)
		}
		err = os.Rename(file, to)
	}
	if err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

func same(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// copyDatabase makes of the empty file to a sound, durable copy of the engine's
// database from, with the metas that change answers.
func copyDatabase(ctx context.Context, from origin, to string, progress Progress, change func(*scan) ([]meta, error)) (*scan, error) {
	err := from.view(ctx, func(ctx context.Context, c *connection) error {
		metas, err := c.metas()
		if err != nil {
			return explainSQL(from.path, err)
		}
		if err := checkStop(from.path, metas); err != nil {
			return err
		}
		// A transaction cannot be vacuumed, and VACUUM INTO is one by itself.
		if err := c.exec("COMMIT"); err != nil {
			return explainSQL(from.path, err)
		}
		if err := os.Truncate(to, 0); err != nil {
			return err
		}
		pages, err := c.number("PRAGMA page_count")
		if err != nil {
			return explainSQL(from.path, err)
		}
		stop := watchSize(to, pages*4096, progress)
		defer stop()
		return c.execContext(ctx, from.path, "VACUUM INTO ?", to)
	})
	if err != nil {
		return nil, err
	}
	c, err := (&disk{path: to}).connect(url.Values{"_pragma": {"synchronous(FULL)", "cache_size(-8192)"}})
	if err != nil {
		return nil, explainSQL(to, err)
	}
	s, err := sealCopy(ctx, c, to, from.path, progress, change)
	if e := c.close(); err == nil && e != nil {
		err = explainSQL(to, e)
	}
	if err != nil {
		return nil, err
	}
	return s, settle(to)
}

// sealCopy verifies a copy and makes it what a clean stop leaves.
func sealCopy(ctx context.Context, c *connection, path, from string, progress Progress, change func(*scan) ([]meta, error)) (*scan, error) {
	if err := c.exec("BEGIN IMMEDIATE"); err != nil {
		return nil, explainSQL(path, err)
	}
	// A clean source has its own figures to compare with.
	s, err := scanLog(ctx, c, path, true, func(done, total int64) { progress.report(total+done, 2*total) })
	if err == nil {
		err = s.err(from)
	}
	var metas []meta
	if err == nil && change != nil {
		metas, err = change(s)
	}
	if err != nil {
		return nil, err
	}
	for _, m := range append(metas, meta{"log_rows", s.rows}, meta{"log_sum", s.sum}, meta{"clean", 1}) {
		if err := c.exec(metaSQL, m.name, m.value); err != nil {
			return nil, explainSQL(path, err)
		}
	}
	if err := c.exec("COMMIT"); err != nil {
		return nil, explainSQL(path, err)
	}
	return s, nil
}

// execContext is exec for a statement that takes long; the driver interrupts it
// when ctx ends.
func (c *connection) execContext(ctx context.Context, path, query string, args ...driver.Value) error {
	s, err := c.stmt(query)
	if err == nil {
		_, err = s.(driver.StmtExecContext).ExecContext(ctx, named(args))
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return explainSQL(path, err)
	}
	return nil
}

// watchSize reports how a file grows, as half of the work, until it is stopped.
func watchSize(path string, total int64, progress Progress) (stop func()) {
	if progress == nil {
		return func() {}
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if info, err := os.Stat(path); err == nil {
					progress(min(info.Size(), total), 2*total)
				}
			case <-end:
				return
			}
		}
	}()
	return func() { close(end); <-ended }
}
