package datastore

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"time"

	"modernc.org/sqlite"
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
func viewFile(path string, body func(c *connection) error) error {
	for range viewTries {
		before, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("open database: %w", err)
		}
		if !before.Mode().IsRegular() {
			return fmt.Errorf("open database: %s is no file", path)
		}
		alone := !hasLog(path)
		err = viewOnce(path, alone, body)
		if !alone {
			return err
		}
		after, statErr := os.Stat(path)
		if statErr == nil && !hasLog(path) && after.Size() == before.Size() && after.ModTime().Equal(before.ModTime()) {
			return err
		}
		time.Sleep(100 * time.Millisecond) // a start is under way
	}
	return fmt.Errorf("read database %s: it is being changed all the time (try again)", path)
}

func viewOnce(path string, alone bool, body func(c *connection) error) error {
	query := url.Values{"mode": {"ro"}, "_pragma": {"busy_timeout(10000)", "cache_size(-8192)"}}
	if inUse(path) {
		query = url.Values{"mode": {"ro"}, "_pragma": {"busy_timeout(100)", "cache_size(-8192)"}} // the server does not go away
	}
	if alone {
		query.Set("immutable", "1")
	}
	c, err := (&disk{path: path}).connectToView(query)
	if err != nil {
		return explainSQL(path, err)
	}
	defer c.close()
	return c.asOfNow(path, func() error { return body(c) })
}

// connectToView is connect for a reader that leaves the log where it is. Even of a
// read-only connection, SQLite removes the log when the last connection closes and there
// is nothing to copy back. A kill while the log began anew leaves such a log, and a
// database that says "open": without its log it would be refused.
func (d *disk) connectToView(query url.Values) (*connection, error) {
	c, err := d.connect(query)
	if err != nil {
		return nil, err
	}
	if _, err := c.Conn.(sqlite.FileControl).FileControlPersistWAL("main", 1); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// asOfNow runs body in a transaction that reads, which begins with its first read.
func (c *connection) asOfNow(path string, body func() error) error {
	if err := c.exec("BEGIN"); err != nil {
		return explainSQL(path, err)
	}
	if _, err := c.number("SELECT count(*) FROM sqlite_master"); err != nil {
		return explainSQL(path, err)
	}
	return body()
}

// viewLocked reads a database of which this process alone has the directory's lock,
// through its log, without locks and with no files made beside it: there may be no room
// for any.
func viewLocked(path string, body func(c *connection) error) error {
	if lockless == "" {
		return viewFile(path, body)
	}
	if !hasLog(path) {
		return viewOnce(path, true, body)
	}
	// No other pragma: the first one that reads has to find this mode.
	c, err := (&disk{path: path, vfs: lockless}).connectToView(url.Values{"mode": {"ro"}, "_pragma": {"locking_mode(EXCLUSIVE)"}})
	if err != nil {
		return explainSQL(path, err)
	}
	defer c.close()
	return c.asOfNow(path, func() error { return body(c) })
}

// hasLog tells whether there is a log beside the database with anything in it.
func hasLog(path string) bool {
	info, err := os.Stat(path + "-wal")
	return err == nil && info.Size() > 0
}

// exists tells whether there is a file of that name.
func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// viewEngine is viewFile for files of the engine, and refuses others.
func viewEngine(path string, body func(c *connection) error) error {
	return viewFile(path, func(c *connection) error {
		if err := checkIdentity(path, c); err != nil {
			return err
		}
		return body(c)
	})
}

func checkIdentity(path string, c *connection) error {
	id, err := c.number("PRAGMA application_id")
	if err != nil {
		return explainSQL(path, err)
	}
	if id != applicationID {
		return fmt.Errorf("%w: %s has application id %#x", ErrForeign, path, id)
	}
	v, err := c.number("PRAGMA user_version")
	if err != nil {
		return explainSQL(path, err)
	}
	if v > schemaVersion {
		return newerSchema(path, v)
	}
	return nil
}

// metas reads the meta table.
func (c *connection) metas() (map[string]int64, error) {
	out := map[string]int64{}
	err := c.query(`SELECT name, value FROM meta`, func(row []driver.Value) error {
		name, _ := row[0].(string)
		out[name], _ = row[1].(int64)
		return nil
	})
	return out, err
}
