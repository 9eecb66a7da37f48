package sqlitefile

import (
	"errors"
	"fmt"
	"path/filepath"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/karve-k8s/karve/datastore/directory"
)

// Errors of a database. They are wrapped with detail: compare with errors.Is.
var (
	// ErrCorrupt: the file is not a database, or fails SQLite's own check or one
	// of ours.
	ErrCorrupt = errors.New("database is damaged")

	// ErrClosed: the file is closed or closing.
	ErrClosed = errors.New("datastore is closed")

	// ErrNewerSchema: the file was written by a newer release. It is left
	// as it is.
	ErrNewerSchema = errors.New("database was written by a newer release")

	// ErrOlderSchema: the file has to be brought to this release's schema first.
	ErrOlderSchema = errors.New("database was written by an older release")

	// ErrForeign: the file is a database, but of some other program.
	ErrForeign = errors.New("database belongs to another program")
)

// Remedy is what remains to do about a database that is damaged.
const Remedy = "restore a backup, or save what can be read with karve datastore salvage"

// mayBeUnread is what an error adds that can come from a failing disk as well as from
// damaged data.
const mayBeUnread = "its disk fails to read"

// ErrRowMissing: a row that an index entry points to is not on the disk,
// because compaction was faster than the reader.
var ErrRowMissing = errors.New("row is gone")

// sqliteCode is SQLite's primary result code of err, 0 for any other error.
func sqliteCode(err error) int { return extendedCode(err) & 0xff }

// extendedCode is SQLite's result code with its detail.
func extendedCode(err error) int {
	var coded *sqlite.Error
	if errors.As(err, &coded) {
		return coded.Code()
	}
	return 0
}

// IsSQLError tells whether an error is SQLite's, which [explainSQL] makes sense of.
func IsSQLError(err error) bool { return sqliteCode(err) != 0 }

// isFull tells whether something failed for want of space. SQLite reports
// SQLITE_FULL only from a write, never from an fsync, and the frame that
// commits is the last one written: the transaction is certainly not committed.
// A used-up quota is found by [connection.withCause].
func IsFull(err error) bool {
	return sqliteCode(err) == sqlite3.SQLITE_FULL || directory.IsFull(err)
}

// mayBeFull tells whether an error of a start can come from a full disk, of which
// SQLite says different things depending on the file it has no room for.
func MayBeFull(err error) bool {
	switch sqliteCode(err) {
	case sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN:
		return true
	}
	return errors.Is(err, directory.ErrNoSpace)
}

// explainSQL turns SQLite's code into an error that names path and what to do.
func Explain(path string, err error) error {
	if errors.Is(err, ErrBusy) || errors.Is(err, ErrOlderSchema) {
		return err
	}
	if IsFull(err) {
		return directory.NoSpaceIn(filepath.Dir(path), err)
	}
	switch sqliteCode(err) {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return BusyWith(path)
	case sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("%w: %s: %v (%s)", ErrCorrupt, path, err, Remedy)
	case sqlite3.SQLITE_CORRUPT:
		// SQLite makes the same of an EIO from a read (SQLITE_IOERR_CORRUPTFS).
		return fmt.Errorf("%w, or %s: %s: %v (if the kernel's log has I/O errors, copy the data directory to another disk first; %s)", ErrCorrupt, mayBeUnread, path, err, Remedy)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM:
		return fmt.Errorf("open database %s: %w (is the data directory writable?)", path, err)
	}
	return fmt.Errorf("open database %s: %w", path, err)
}
