package sqlitefile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
)

// Inspect looks at a database before SQLite does. It refuses one that must not be opened,
// or has a newer schema than newest, and changes nothing. walWasCopied tells whether another
// program has copied the whole WAL back since the last stop.
func Inspect(path string, newest int64) (walWasCopied bool, err error) {
	header := make([]byte, 100)
	f, err := os.Open(path)
	if err != nil {
		return false, fmt.Errorf("open database: %w", err)
	}
	n, err := io.ReadFull(f, header)
	f.Close()
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("read database: %w", err)
	}
	if n < len(header) || !bytes.HasPrefix(header, []byte("SQLite format 3\x00")) {
		return false, fmt.Errorf("%w: %s is not a database (%s)", ErrCorrupt, path, Remedy)
	}
	if id := binary.BigEndian.Uint32(header[68:]); id != applicationID {
		return false, fmt.Errorf("%w: %s has application id %#x", ErrForeign, path, id)
	}
	if v := int64(binary.BigEndian.Uint32(header[60:])); v > newest {
		return false, newerSchema(path, v)
	}
	if walWasCopied, err = inspectWAL(path); err != nil || !HasWAL(path) {
		return walWasCopied, err
	}
	// A newer release that was killed may have said so in the WAL only. Whatever
	// else keeps it from being read is told by those who need it.
	if v, err := WALSchema(path); err == nil && v > newest {
		return false, newerSchema(path, v)
	}
	return walWasCopied, nil
}

// inspectWAL compares what the database, read without its WAL, says of the last
// stop with the WAL that is there.
func inspectWAL(path string) (walWasCopied bool, err error) {
	c, err := Connect(path, url.Values{"mode": {"ro"}, "immutable": {"1"}})
	if err != nil {
		return false, Explain(path, err)
	}
	defer c.Close()
	value, err := c.Number(`SELECT value FROM meta WHERE name = 'clean'`)
	if err != nil {
		// A checkpoint that a power loss tore: the WAL has the pages.
		return false, nil
	}
	state := stopState(value)
	return state.sealed() && !HasWAL(path), checkStopped(path, state)
}

// IsDatabase tells by the header of the file whether it is a database of the engine. The
// caller holds the lock of its directory, so that no server of this process has it open.
func IsDatabase(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	header := make([]byte, 100)
	if _, err := io.ReadFull(f, header); err != nil {
		return false
	}
	return binary.BigEndian.Uint32(header[68:]) == applicationID
}

// HeaderSchema is the version of the schema in SQLite's header of a file that
// nobody has open, without its log.
func HeaderSchema(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var version [4]byte
	_, err = f.ReadAt(version[:], 60) // https://sqlite.org/fileformat2.html#user_version_number
	return int64(binary.BigEndian.Uint32(version[:])), err
}

// WALSchema is the version of the schema, as SQLite reads it: with the log.
func WALSchema(path string) (version int64, err error) {
	err = ViewLocked(path, func(c *Connection) (err error) {
		if version, err = c.Number("PRAGMA user_version"); err != nil {
			return Explain(path, err)
		}
		return nil
	})
	return version, err
}

func newerSchema(path string, version int64) error {
	return fmt.Errorf("%w: %s has schema %d, this release knows %d (use the newer release, or restore a backup of this one)", ErrNewerSchema, path, version, SchemaVersion)
}
