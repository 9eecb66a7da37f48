package sqlitefile

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"
)

// indexRegion is the size in bytes that a WAL-index grows by (WALINDEX_PGSZ in SQLite's wal.c). Nobody uses a smaller file.
const indexRegion = 32 << 10

// ViewAny runs body with a connection that reads any SQLite database in one transaction. It changes
// nothing, and another process may be writing meanwhile.
//
// A database with a WAL beside it is read with SQLite's locks. While a server in another process
// uses it, the error is [ErrBusy]. Nobody has a database without a WAL open, nor one beside which a disk that is read-only
// or full lets SQLite make no WAL-index (-shm): ViewAny reads it without locks. If a server has started or stopped by the end,
// what body has read may be inconsistent, and the error is ErrBusy too. On a full disk, the beginning of a WAL-index may be left.
//
// Only SQLite opens the file: if this process closed a descriptor of its own, the locks of an engine
// in the same process would be gone (https://sqlite.org/howtocorrupt.html#posixlocks). A database that
// this process has open is read with [File.View] instead.
func ViewAny(path string, body func(c *Connection) error) error {
	path = current(path)
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("open database: %s is not a regular file", path)
	}
	before := stateOf(path)
	if HasWAL(path) {
		read, index := false, Size(path+"-shm")
		err = viewOnce(path, false, func(c *Connection) error {
			read = true
			return body(c)
		})
		if err == nil || read || IsBusy(err) || index >= indexRegion || inUse(path) {
			return err
		}
		err = ViewLocked(path, body)
	} else {
		err = viewOnce(path, true, body)
	}
	if stateOf(path) != before {
		return BusyWith(path)
	}
	return err
}

// fileState is how large a database and its WAL are, and when they were last changed. A missing WAL is as an empty one.
type fileState [2]struct {
	size    int64
	changed time.Time
}

func stateOf(path string) (s fileState) {
	for i, file := range []string{path, path + "-wal"} {
		if info, err := os.Stat(file); err == nil && info.Size() > 0 {
			s[i].size, s[i].changed = info.Size(), info.ModTime()
		}
	}
	return s
}

func viewOnce(path string, alone bool, body func(c *Connection) error) error {
	query := url.Values{"mode": {"ro"}, "_pragma": {"busy_timeout(10000)", "cache_size(-8192)"}}
	if inUse(path) {
		query = url.Values{"mode": {"ro"}, "_pragma": {"busy_timeout(100)", "cache_size(-8192)"}} // the server will not end soon
	}
	if alone {
		query.Set("immutable", "1")
	}
	c, err := connectToView(path, query)
	if err != nil {
		return Explain(path, err)
	}
	defer c.Close()
	return c.asOfNow(path, func() error { return body(c) })
}

// connectToView is [Connect] for a reader that leaves the WAL where it is. SQLite removes the WAL when
// the last connection closes and there is nothing to copy back, even if that connection is read-only. A
// kill while the WAL is being restarted leaves such a WAL, beside a database that says "open" and that
// would be refused without it.
func connectToView(path string, query url.Values) (*Connection, error) {
	c, err := Connect(path, query)
	if err != nil {
		return nil, err
	}
	if err := c.PersistWAL(true); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// asOfNow runs body in a read transaction, which begins with a first read.
func (c *Connection) asOfNow(path string, body func() error) error {
	if err := c.Exec("BEGIN"); err != nil {
		return Explain(path, err)
	}
	if _, err := c.Number("SELECT count(*) FROM sqlite_master"); err != nil {
		return Explain(path, err)
	}
	return body()
}

// ViewLocked is [ViewAny] for a caller that holds the lock of the directory. It reads the WAL too, but
// takes no locks and makes no file beside the database, since there may be no space for one.
func ViewLocked(path string, body func(c *Connection) error) error {
	if !HasWAL(path) {
		return viewOnce(path, true, body)
	}
	// No other pragma: the first one that reads has to find this mode.
	c, err := connectToView(path, url.Values{"vfs": {lockless}, "mode": {"ro"}, "_pragma": {"locking_mode(EXCLUSIVE)"}})
	if err != nil {
		return Explain(path, err)
	}
	defer c.Close()
	return c.asOfNow(path, func() error { return body(c) })
}

// View is [ViewAny] for databases of the engine; it refuses others with [ErrForeign] or
// [ErrNewerSchema], and one beside the WAL of another with [ErrForeignWAL].
func View(path string, body func(c *Connection) error) error {
	return ViewAny(path, func(c *Connection) error {
		if err := checkIdentity(path, c); err != nil {
			return err
		}
		if err := checkRunOf(path, c); err != nil {
			return err
		}
		return body(c)
	})
}

func checkIdentity(path string, c *Connection) error {
	id, err := c.Number("PRAGMA application_id")
	if err != nil {
		return Explain(path, err)
	}
	if id != applicationID {
		return fmt.Errorf("%w: %s has application id %#x", ErrForeign, path, id)
	}
	v, err := c.Number("PRAGMA user_version")
	if err != nil {
		return Explain(path, err)
	}
	if v > SchemaVersion {
		return newerSchema(path, v)
	}
	return nil
}

// Source is a database of the engine that can be read in one transaction: a closed file, or the
// file of a running engine.
type Source interface {
	Path() string
	View(ctx context.Context, body func(context.Context, *Connection) error) error
}

// ClosedFile is the path of a database that no engine of this process has open. It is a [Source].
type ClosedFile string

// Path returns the path of the database.
func (f ClosedFile) Path() string { return string(f) }

// View runs body with a connection that reads the file in one transaction. While a server in
// another process uses the file, the error is [ErrBusy].
func (f ClosedFile) View(ctx context.Context, body func(context.Context, *Connection) error) error {
	return View(string(f), func(c *Connection) error { return body(ctx, c) })
}

// Path returns the path of the database.
func (f *File) Path() string { return f.path }
