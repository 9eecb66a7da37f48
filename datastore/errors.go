package datastore

import (
	"errors"
	"fmt"
	"syscall"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Errors of the engine. They are wrapped with detail: compare with errors.Is.
var (
	// ErrCompacted: the revision asked for is older than the compaction
	// revision, so its history is gone.
	ErrCompacted = errors.New("revision has been compacted")

	// ErrFutureRevision: the revision asked for has not happened yet.
	ErrFutureRevision = errors.New("revision is in the future")

	// ErrEmptyKey: a key must have at least one byte.
	ErrEmptyKey = errors.New("key is empty")

	// ErrDuplicateKey: one branch of a transaction writes a key twice.
	ErrDuplicateKey = errors.New("key is written twice in one transaction")

	// ErrTooManyChanges: one revision cannot hold more than 65,536 changes.
	ErrTooManyChanges = errors.New("transaction changes too many keys")

	// ErrKeyNotFound: a put that keeps the value or lease of its key needs
	// the key to be there.
	ErrKeyNotFound = errors.New("key not found")

	// ErrLeaseNotFound: there is no such lease, or it has expired.
	ErrLeaseNotFound = errors.New("lease not found")

	// ErrLeaseExists: a lease with the id asked for is already granted.
	ErrLeaseExists = errors.New("lease already exists")

	// ErrNoSpace: the write was not done because the disk is full. Reads,
	// watches, deletes and compaction go on; puts work again by themselves
	// once there is room.
	ErrNoSpace = errors.New("no space left for the datastore")

	// ErrUnknownOutcome: the disk failed while a batch was being committed. The
	// write may or may not be there after the next start; it is never right
	// to treat it as a conflict. The engine takes no write after it.
	ErrUnknownOutcome = errors.New("outcome of the write is unknown")

	// ErrClosed: the engine is closed or closing.
	ErrClosed = errors.New("datastore is closed")

	// ErrNewerSchema: the file was written by a newer release. It is left
	// as it is.
	ErrNewerSchema = errors.New("database was written by a newer release")

	// ErrForeign: the file is a database, but of some other program.
	ErrForeign = errors.New("database belongs to another program")
)

// errNoFile: an engine in mode Memory has no database to look at.
var errNoFile = errors.New("the datastore is in memory and has no file")

// wayOut is what remains to do about a database that is damaged.
const wayOut = "restore a backup, or save what can be read with karve datastore salvage"

// mayBeUnread is what an error adds that can come from a failing disk as well as from
// damaged data.
const mayBeUnread = "its disk fails to read"

// errRetry tells a caller inside the package to evaluate its transaction again:
// the state it was compared against never became durable.
var errRetry = errors.New("evaluate again")

// errRowMissing: a row that an index entry points to is not on the disk,
// because compaction was faster than the reader.
var errRowMissing = errors.New("row is gone")

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

// isFull tells whether something failed for want of space. SQLite reports
// SQLITE_FULL only from a write, never from an fsync, and the frame that
// commits is the last one written: the transaction is certainly not committed.
// A used-up quota is found by [connection.withCause].
func isFull(err error) bool {
	return sqliteCode(err) == sqlite3.SQLITE_FULL || errors.Is(err, ErrNoSpace) ||
		errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// IsFull tells whether something could not be written because a disk is full or a quota is
// used up.
func IsFull(err error) bool { return isFull(err) }

// mayBeFull tells whether an error of a start can come from a full disk, of which
// SQLite says different things depending on the file it has no room for.
func mayBeFull(err error) bool {
	switch sqliteCode(err) {
	case sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN:
		return true
	}
	return errors.Is(err, ErrNoSpace)
}

// explainSQL turns SQLite's code into an error that names path and what to do.
func explainSQL(path string, err error) error {
	if errors.Is(err, ErrBusy) {
		return err
	}
	if isFull(err) {
		b := ballast{path: path}
		b.quota.Store(errors.Is(err, syscall.EDQUOT))
		return b.noSpace()
	}
	switch sqliteCode(err) {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return busyWith(path)
	case sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("%w: %s: %v (%s)", ErrCorrupt, path, err, wayOut)
	case sqlite3.SQLITE_CORRUPT:
		// SQLite makes the same of an EIO from a read (SQLITE_IOERR_CORRUPTFS).
		return fmt.Errorf("%w, or %s: %s: %v (if the kernel's log has I/O errors, copy the data directory to another disk first; %s)", ErrCorrupt, mayBeUnread, path, err, wayOut)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM:
		return fmt.Errorf("open database %s: %w (is the data directory writable?)", path, err)
	}
	return fmt.Errorf("open database %s: %w", path, err)
}
