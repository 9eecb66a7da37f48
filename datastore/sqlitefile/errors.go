package sqlitefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/karve-k8s/karve/datastore/directory"
)

// Errors of a database. They are wrapped with detail: compare with errors.Is.
var (
	// ErrCorrupt is the error for a file that is no database, or that fails a check: SQLite's
	// or Karve's.
	ErrCorrupt = errors.New("database is damaged")

	// ErrClosed is the error of every use of a [File] that is closed or closing.
	ErrClosed = errors.New("datastore is closed")

	// ErrNewerSchema is the error for a database of a newer release. The file is left as it is.
	ErrNewerSchema = errors.New("database was written by a newer release")

	// ErrForeignWAL is the error for a database that somebody has put beside the WAL of another. Neither file is changed.
	ErrForeignWAL = errors.New("the WAL beside the database is that of another database")

	// ErrForeign is the error for a database of another program.
	ErrForeign = errors.New("database belongs to another program")
)

// Remedy is what an error about a damaged database advises.
const Remedy = "restore a backup, or save what can be read with karve datastore salvage"

// mayBeUnread is what an error adds if its cause can be a failing disk as well as damaged data.
const mayBeUnread = "its disk fails to read"

// ErrRowMissing is the error for a row that is not in the log table. Compaction may have deleted
// it after the reader had found it in the index.
var ErrRowMissing = errors.New("row is gone")

// sqliteCode returns SQLite's primary result code of err, 0 for any other error.
func sqliteCode(err error) int { return extendedCode(err) & 0xff }

// extendedCode returns SQLite's extended result code.
func extendedCode(err error) int {
	var coded *sqlite.Error
	if errors.As(err, &coded) {
		return coded.Code()
	}
	return 0
}

// IsSQLError reports whether an error is SQLite's. [Explain] is for such errors.
func IsSQLError(err error) bool { return sqliteCode(err) != 0 }

// IsFull reports whether something failed because the disk is full. SQLite returns SQLITE_FULL
// only for a write, never for an fsync, and the frame that commits is written last. So such a
// transaction is certainly not committed. [Connection.withCause] finds a quota that is used up.
func IsFull(err error) bool {
	return sqliteCode(err) == sqlite3.SQLITE_FULL || directory.IsFull(err)
}

// Explain turns an error of SQLite into one that names the database and the remedy.
func Explain(path string, err error) error {
	if errors.Is(err, ErrBusy) {
		return err
	}
	if IsFull(err) {
		return directory.NoSpaceIn(filepath.Dir(path), err)
	}
	if errors.Is(err, fs.ErrPermission) {
		return unwritable(path, err)
	}
	switch sqliteCode(err) {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return BusyWith(path)
	case sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("%w: %s: %v (%s)", ErrCorrupt, path, err, Remedy)
	case sqlite3.SQLITE_CORRUPT:
		// SQLite also returns this for an EIO from a read (SQLITE_IOERR_CORRUPTFS).
		return fmt.Errorf("%w, or %s: %s: %v (if the kernel's log has I/O errors, copy the data directory to another disk first; %s)", ErrCorrupt, mayBeUnread, path, err, Remedy)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM:
		return unwritable(path, err)
	}
	return fmt.Errorf("open database %s: %w", path, err)
}

// unwritable adds the modes of a database and its directory to an error.
func unwritable(path string, err error) error {
	mode := func(path string) string {
		info, err := os.Stat(path)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("%04o", info.Mode().Perm())
	}
	return fmt.Errorf("open database %s: %w (its mode: %s; its directory's: %s; the server's user has to read and write both)", path, err, mode(path), mode(filepath.Dir(path)))
}

// ErrBusy is the error when another program has locked the database. Nothing was read or
// written.
var ErrBusy = errors.New("database is in use by another program")

// IsBusy reports whether another program's lock kept a statement from doing anything.
func IsBusy(err error) bool {
	switch sqliteCode(err) {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return true
	}
	return errors.Is(err, ErrBusy)
}

// BusyWith returns [ErrBusy] with the server that uses the directory, or with how to find out who uses the database.
func BusyWith(path string) error {
	if pid, _, _ := directory.Holder(filepath.Dir(path)); pid != 0 && pid != os.Getpid() {
		return fmt.Errorf("%w: %s is open in process %d (close it there)", ErrBusy, path, pid)
	}
	return fmt.Errorf("%w: close it there; fuser %s names the process", ErrBusy, path)
}
