// Package datastore is the storage engine: etcd's data model (revisions,
// transactions, watches, leases, compaction) over one SQLite file,
// <data-dir>/mvcc.db, in a directory it locks. Begin with [OpenConverted];
// DESIGN.md has the decisions and what always holds.
//
// This file is the old table, kine's state.db, which is only opened to be
// converted.
package datastore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

var (
	// ErrLocked: another process has the data directory open. The error that
	// wraps it names that process.
	ErrLocked = errors.New("data directory is in use")

	// ErrCorrupt: the file is not a database, or fails SQLite's own check.
	ErrCorrupt = errors.New("database is damaged")
)

// FileName is the name of the database inside the data directory. SQLite keeps
// FileName-wal and FileName-shm beside it while it is open; together they are
// the state, so a copy of the first alone may lack the newest writes.
const FileName = "state.db"

// Store is the database of a locked data directory. Its zero value is not
// usable: call [Open].
type Store struct {
	path      string
	connector driver.Connector
}

// Open opens or makes state.db, mode 0600, in the directory that lock holds and
// brings its schema up to date.
//
// Every commit is on the disk when it returns (synchronous=FULL in WAL mode).
// After an unclean stop SQLite replays its log; nothing is repaired beyond
// that, and a file that is no sound database is refused with [ErrCorrupt] and
// left as it is. The caller keeps lock until all connections are closed.
func Open(ctx context.Context, lock *Lock) (*Store, error) {
	s := &Store{path: filepath.Join(lock.dir, FileName)}
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Store) open(ctx context.Context) error {
	// SQLite creates files with the umask's mode; the state holds every Secret
	// of the cluster, so the file exists with its own mode before that.
	f, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	f.Close()

	s.connector, err = sqlite.NewConnector(dsn(s.path))
	if err != nil {
		return fmt.Errorf("open database %s: %w", s.path, err)
	}
	db := sql.OpenDB(s.connector)
	defer db.Close()
	for _, statement := range schema {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return s.explain(err)
		}
	}
	return nil
}

// dsn names the database and the pragmas every connection starts with.
func dsn(path string) string {
	pragmas := url.Values{"_pragma": {
		"busy_timeout(30000)",
		"journal_mode(WAL)",
		"synchronous(FULL)",
	}, "_txlock": {"immediate"}}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: pragmas.Encode()}).String()
}

// explain turns SQLite's codes into an error a person can act on.
func (s *Store) explain(err error) error {
	var coded *sqlite.Error
	if errors.As(err, &coded) {
		switch coded.Code() & 0xff { // the low byte is the primary result code
		case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
			return fmt.Errorf("%w: %s: %v (move the file away to begin anew, or put a backup in its place)", ErrCorrupt, s.path, err)
		case sqlite3.SQLITE_FULL:
			return fmt.Errorf("open database %s: no space left on the device", s.path)
		case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR:
			return fmt.Errorf("open database %s: %v (is the data directory writable?)", s.path, err)
		}
	}
	return fmt.Errorf("open database %s: %w", s.path, err)
}

// Connector opens connections to the database. Close all of them before the
// lock of the directory.
func (s *Store) Connector() driver.Connector { return s.connector }

// Path is the database file.
func (s *Store) Path() string { return s.path }

// IsUniqueViolation tells whether err is a row refused by a unique index: in
// this schema, a key that changed or was created since it was read.
func IsUniqueViolation(err error) bool {
	var coded *sqlite.Error
	return errors.As(err, &coded) && coded.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE
}

// ErrorCode names err for a metric label: SQLite's name of the code, or the
// empty string for nil.
func ErrorCode(err error) string {
	if err == nil {
		return ""
	}
	var coded *sqlite.Error
	if errors.As(err, &coded) {
		if name := sqlite.ErrorCodeString[coded.Code()]; name != "" {
			return strings.TrimSpace(name)
		}
	}
	return "other"
}
