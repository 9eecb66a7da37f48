package sqlitefile

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"
)

// viewTries is how often a file is read that changes under the reader: a server
// that is started and stopped again and again can do that for a while.
const viewTries = 50

// viewFile reads an SQLite database as of one moment and changes nothing of it, while
// another process may be writing to it. body is called again if that process
// came in between.
//
// A file with a log beside it is read with SQLite's locks, through both; beside a server
// in another process, which lets nobody else read it, the error is [ErrBusy]. One
// without is nobody's at present: it is read with no locks and no files made
// beside it, so that a read-only disk will do; if a log has appeared by the end,
// the answer may be torn and is thrown away.
//
// The file itself is never opened but by SQLite: closing a descriptor of ours
// would drop the locks of an engine in this process
// (https://sqlite.org/howtocorrupt.html#posixlocks). What this process has open itself is
// read through the engine instead: see [disk.longRead].
func ViewAny(path string, body func(c *Connection) error) error {
	for range viewTries {
		before, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("open database: %w", err)
		}
		if !before.Mode().IsRegular() {
			return fmt.Errorf("open database: %s is no file", path)
		}
		alone := !HasWAL(path)
		err = viewOnce(path, alone, body)
		if !alone {
			return err
		}
		after, statErr := os.Stat(path)
		if statErr == nil && !HasWAL(path) && after.Size() == before.Size() && after.ModTime().Equal(before.ModTime()) {
			return err
		}
		time.Sleep(100 * time.Millisecond) // a start is under way
	}
	return fmt.Errorf("read database %s: it is being changed all the time (try again)", path)
}

func viewOnce(path string, alone bool, body func(c *Connection) error) error {
	query := url.Values{"mode": {"ro"}, "_pragma": {"busy_timeout(10000)", "cache_size(-8192)"}}
	if inUse(path) {
		query = url.Values{"mode": {"ro"}, "_pragma": {"busy_timeout(100)", "cache_size(-8192)"}} // the server does not go away
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

// connectToRead is connect for a reader that leaves the WAL where it is. Even of a
// read-only connection, SQLite removes the WAL when the last connection closes and there
// is nothing to copy back. A kill while the WAL began anew leaves such a WAL, and a
// database that says "open": without its WAL it would be refused.
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

// asOfNow runs body in a transaction that reads, which begins with its first read.
func (c *Connection) asOfNow(path string, body func() error) error {
	if err := c.Exec("BEGIN"); err != nil {
		return Explain(path, err)
	}
	if _, err := c.Number("SELECT count(*) FROM sqlite_master"); err != nil {
		return Explain(path, err)
	}
	return body()
}

// viewLocked reads a database of which this process alone has the directory's lock,
// through its log, without locks and with no files made beside it: there may be no room
// for any.
func ViewLocked(path string, body func(c *Connection) error) error {
	if lockless == "" {
		return ViewAny(path, body)
	}
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

// viewEngine is viewFile for files of the engine, and refuses others.
func View(path string, body func(c *Connection) error) error {
	return ViewAny(path, func(c *Connection) error {
		if err := checkIdentity(path, c); err != nil {
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
