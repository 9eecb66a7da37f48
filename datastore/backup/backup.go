// Package backup reads all of a database: it summarizes and verifies it, and copies it to a file. A copy is verified
// before it gets its name, so both live here.
package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// ErrExists is the error for a backup whose file exists already.
var ErrExists = errors.New("file is there already")

// Result describes a backup that was made or restored.
type Result struct {
	From     string `json:"from"`
	To       string `json:"to"`
	Kept     string `json:"kept,omitempty"` // new name of the file that To replaced
	Revision int64  `json:"revision"`
	Keys     int64  `json:"keys"`
	Bytes    int64  `json:"bytes"`
	// Removed are files that earlier restores had kept.
	Removed []string `json:"removed,omitempty"`
}

// Write copies a database of the engine to the file to. While a server in another process uses the
// database, the error is [sqlitefile.ErrBusy].
//
// The backup is a database (0600) that was closed in order, without free pages. It gets its name
// when every row's checksum is verified and all of it is on the disk.
func Write(ctx context.Context, from sqlitefile.Source, to string) (*Result, error) {
	return Place(from.Path(), to, func(file string) (*Result, error) {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			return nil, err
		}
		s, err := Copy(ctx, from, file, nil, func(s *Summary) (sqlitefile.Metas, error) {
			return Resume(max(s.Revision, s.Metas["reserved"])), nil
		})
		if err != nil {
			return nil, err
		}
		return &Result{Revision: s.Revision, Keys: s.Keys}, nil
	})
}

// Place calls build to make a database in a temporary directory beside to, and then gives it the
// name to. from is the path of the original database, or empty.
func Place(from, to string, build func(file string) (*Result, error)) (_ *Result, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("back up: %w", err)
		}
	}()
	if to, err = filepath.Abs(to); err != nil {
		return nil, err
	}
	if taken, err := directory.Exists(to); err != nil {
		return nil, err
	} else if taken {
		return nil, fmt.Errorf("%w: %s", ErrExists, to)
	}
	var out *Result
	err = directory.Place(to, false, func(temp *directory.TempDir) (err error) {
		out, err = build(temp.File())
		return err
	})
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%w: %s", ErrExists, to)
	} else if err != nil {
		return nil, err
	}
	out.From, out.To = from, to
	if info, err := os.Stat(to); err == nil {
		out.Bytes = info.Size()
	}
	return out, nil
}

// Copy makes a verified, durable copy of the database from in the empty file to. change
// returns rows of the meta table to write to the copy.
func Copy(ctx context.Context, from sqlitefile.Source, to string, progress sqlitefile.Progress, change func(*Summary) (sqlitefile.Metas, error)) (*Summary, error) {
	err := from.View(ctx, func(ctx context.Context, c *sqlitefile.Connection) error {
		metas, err := c.Metas()
		if err != nil {
			return sqlitefile.Explain(from.Path(), err)
		}
		if err := sqlitefile.CheckStop(from.Path(), metas); err != nil {
			return err
		}
		// SQLite refuses VACUUM in a transaction; VACUUM INTO is one by itself.
		if err := c.Exec("COMMIT"); err != nil {
			return sqlitefile.Explain(from.Path(), err)
		}
		if err := os.Truncate(to, 0); err != nil {
			return err
		}
		pages, err := c.Number("PRAGMA page_count")
		if err != nil {
			return sqlitefile.Explain(from.Path(), err)
		}
		total := pages * 4096
		stop := progress.Meanwhile(200*time.Millisecond, func() (int64, int64) { return min(sqlitefile.Size(to), total), 2 * total })
		defer stop()
		return c.ExecContext(ctx, from.Path(), "VACUUM INTO ?", to)
	})
	if err != nil {
		return nil, err
	}
	return rewrite(ctx, to, from.Path(), true, func(done, total int64) { progress.Report(total+done, 2*total) }, func(_ *sqlitefile.Connection, s *Summary) (sqlitefile.Metas, error) {
		return change(s)
	})
}

// rewrite reads all of the database at path, which is named name in errors, and lets change change it and return rows of the meta
// table. All of that is one transaction, which also marks the database as closed in order. With values, it verifies each row.
func rewrite(ctx context.Context, path, name string, values bool, progress sqlitefile.Progress, change func(*sqlitefile.Connection, *Summary) (sqlitefile.Metas, error)) (*Summary, error) {
	c, err := sqlitefile.Connect(path, url.Values{"_pragma": {"synchronous(FULL)", "cache_size(-8192)"}})
	if err != nil {
		return nil, sqlitefile.Explain(path, err)
	}
	s, err := rewriteIn(ctx, c, path, name, values, progress, change)
	if closing := c.Close(); err == nil && closing != nil {
		err = sqlitefile.Explain(path, closing)
	}
	if err != nil {
		return nil, err
	}
	return s, sqlitefile.Settle(path)
}

func rewriteIn(ctx context.Context, c *sqlitefile.Connection, path, name string, values bool, progress sqlitefile.Progress, change func(*sqlitefile.Connection, *Summary) (sqlitefile.Metas, error)) (*Summary, error) {
	if err := c.Exec("BEGIN IMMEDIATE"); err != nil {
		return nil, sqlitefile.Explain(path, err)
	}
	// A copy still has the mark of its source. If that was closed in order, its figures count.
	s, err := Summarize(ctx, c, path, values, progress)
	if err == nil {
		err = s.Err(name)
	}
	if err != nil {
		return nil, err
	}
	metas, err := change(c, s)
	if err == nil {
		err = c.SetMetas(metas)
	}
	if err == nil {
		err = c.SetClosed(s.rows, s.sum)
	}
	if err == nil {
		err = c.Exec("COMMIT")
	}
	if sqlitefile.IsSQLError(err) {
		err = sqlitefile.Explain(path, err)
	}
	return s, err
}
