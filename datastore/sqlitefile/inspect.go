package sqlitefile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
)

// Inspect checks a database before SQLite opens it, and changes nothing. It refuses a file that
// must not be opened, or that has a newer schema.
func Inspect(path string) error {
	header, err := headerOf(path)
	if err != nil {
		return err
	}
	if len(header) < headerBytes || !bytes.HasPrefix(header, []byte("SQLite format 3\x00")) {
		return fmt.Errorf("%w: %s is not a database (%s)", ErrCorrupt, path, Remedy)
	}
	if id := binary.BigEndian.Uint32(header[68:]); id != applicationID {
		return fmt.Errorf("%w: %s has application id %#x", ErrForeign, path, id)
	}
	if v := int64(binary.BigEndian.Uint32(header[60:])); v > SchemaVersion {
		return newerSchema(path, v)
	}
	alone, err := metasAlone(path)
	if err == nil && alone != nil {
		err = checkStopped(path, alone.state())
	}
	if err != nil || !HasWAL(path) {
		return err
	}
	// A newer release that was killed may have written its schema to the WAL only. Another
	// error of this reading is not reported here: SQLite meets it again when it opens the file.
	var schema int64
	var with Metas
	err = ViewLocked(path, func(c *Connection) (err error) {
		if schema, err = c.Number("PRAGMA user_version"); err == nil {
			with, err = c.Metas()
		}
		return err
	})
	if err == nil && schema > SchemaVersion {
		return newerSchema(path, schema)
	}
	if err == nil && alone != nil {
		return checkRun(path, alone, with)
	}
	return nil
}

// headerBytes is the size of the header of a database.
const headerBytes = 100

// headerOf returns the header of a file, or all of a shorter file. The caller holds the lock of its directory, so that no engine
// of this process has the file open.
func headerOf(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	defer f.Close()
	header, err := io.ReadAll(io.LimitReader(f, headerBytes))
	if err != nil {
		return nil, fmt.Errorf("read database: %w", err)
	}
	return header, nil
}

// IsDatabase reports, by the header of a file, whether it is a database of the engine. The caller
// holds the lock of its directory.
func IsDatabase(path string) bool {
	header, err := headerOf(path)
	return err == nil && len(header) == headerBytes && binary.BigEndian.Uint32(header[68:]) == applicationID
}

func newerSchema(path string, version int64) error {
	return fmt.Errorf("%w: %s has schema %d, this release knows %d (use the newer release, or restore a backup of this one)", ErrNewerSchema, path, version, SchemaVersion)
}

// Info is what a database says of itself without a scan of all its rows.
type Info struct {
	Path          string `json:"path"`
	SchemaVersion int64  `json:"schemaVersion"`
	Revision      int64  `json:"revision"`
	Bytes         int64  `json:"bytes"`    // of the file
	WALBytes      int64  `json:"walBytes"` // of the WAL beside it
}

// ReadInfo reads the figures of the engine's database at path that need no scan. It refuses what
// a start would refuse for its header: [ErrNewerSchema], [ErrForeign], [ErrCorrupt]. While a
// server uses the database, the error is [ErrBusy].
func ReadInfo(path string) (*Info, error) {
	out := &Info{Path: path}
	err := View(path, func(c *Connection) error {
		metas, err := c.Metas()
		if err != nil {
			return Explain(path, err)
		}
		last, err := c.Number("SELECT ifnull(max(id), 0) FROM log")
		if err != nil {
			return Explain(path, err)
		}
		if out.SchemaVersion, err = c.Number("PRAGMA user_version"); err != nil {
			return Explain(path, err)
		}
		out.Revision = metas.Revision(last)
		return nil
	})
	if err != nil {
		return nil, err
	}
	out.Bytes, out.WALBytes = Size(path), Size(path+"-wal")
	return out, nil
}

// Err returns [ErrNewerSchema] for a database that this release cannot open, or nil.
func (l *Info) Err() error {
	if l.SchemaVersion > SchemaVersion {
		return newerSchema(l.Path, l.SchemaVersion)
	}
	return nil
}

// A database carries a random number, the meta row "run". A start changes it if the last stop was in order, and every
// backup has its own. Each generation of a WAL has the page of the meta table, because it begins with a change of the row
// "clean". So the number without the WAL differs from that with it if somebody has put a database beside
// the WAL of another. SQLite would copy that WAL into it.

// newRun returns the rows of a database that gets a new number in place of before.
func newRun(before int64) Metas { return Metas{"run": rand.Int64(), "run_before": before} }

// metasAlone reads the meta table without the WAL. It returns nil if that is not possible: after a power loss in the middle of a
// checkpoint, only the WAL has all pages.
func metasAlone(path string) (Metas, error) {
	c, err := Connect(path, url.Values{"mode": {"ro"}, "immutable": {"1"}})
	if err != nil {
		return nil, Explain(path, err)
	}
	defer c.Close()
	metas, err := c.Metas()
	if err != nil {
		return nil, nil
	}
	return metas, nil
}

// checkRun refuses a database that is beside the WAL of another. The meta table was read without the WAL, and with it.
func checkRun(path string, alone, with Metas) error {
	switch alone["run"] {
	case with["run"]:
		return nil
	case with["run_before"]:
		if with.state().open() { // killed before the number was in the database itself
			return nil
		}
	}
	return fmt.Errorf("%w: move %s-wal away, and %s is used as it is", ErrForeignWAL, path, path)
}

// checkRunOf is [checkRun] for a database that c reads with its WAL, unless a server has it open.
func checkRunOf(path string, c *Connection) error {
	if !HasWAL(path) || inUse(path) {
		return nil
	}
	with, err := c.Metas()
	if err != nil {
		return Explain(path, err)
	}
	alone, err := metasAlone(path)
	if err != nil || alone == nil || inUse(path) {
		return err
	}
	return checkRun(path, alone, with)
}
