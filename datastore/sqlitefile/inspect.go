package sqlitefile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// Inspect checks a database before SQLite opens it, and changes nothing. It refuses a file that
// must not be opened, or that has a newer schema.
func Inspect(path string) error {
	header := make([]byte, 100)
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	n, err := io.ReadFull(f, header)
	f.Close()
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read database: %w", err)
	}
	if n < len(header) || !bytes.HasPrefix(header, []byte("SQLite format 3\x00")) {
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

// IsDatabase reports, by the header of a file, whether it is a database of the engine. The caller
// holds the lock of its directory, so that no engine of this process has the file open.
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

func newerSchema(path string, version int64) error {
	return fmt.Errorf("%w: %s has schema %d, this release knows %d (use the newer release, or restore a backup of this one)", ErrNewerSchema, path, version, SchemaVersion)
}
