package sqlitefile

import (
	"fmt"
	"reflect"
	"syscall"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/karve-k8s/karve/datastore/directory"
)

// withCause adds the system's error to SQLite's "disk I/O error" of a write. SQLite makes
// SQLITE_FULL of ENOSPC only: when a quota is used up or a file too large, it says no more than that. Nothing was
// written then either, and the frame that commits is written last, so this is a full disk too. The
// same holds when SQLite truncates the database at the end of a checkpoint, for which btrfs needs
// space: the WAL still counts as not copied back, and the next checkpoint repeats it.
//
// After a failed fsync, whatever its cause, it is not known what is on the disk.
func (c *Connection) withCause(err error) error {
	switch extendedCode(err) {
	case sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_TRUNCATE:
	default:
		return err
	}
	errno := c.errno()
	if directory.IsFull(errno) {
		return fmt.Errorf("%w: %w: %w", directory.ErrNoSpace, errno, err)
	}
	if errno != 0 {
		return fmt.Errorf("%w: %w", err, errno)
	}
	return err
}

// errno returns sqlite3_system_errno (https://sqlite.org/c3ref/system_errno.html), or 0 if it is
// not known. The driver has no method for it.
func (c *Connection) errno() syscall.Errno {
	conn := reflect.ValueOf(c.Conn)
	if conn.Kind() != reflect.Pointer || conn.Elem().Kind() != reflect.Struct {
		return 0
	}
	db, tls := conn.Elem().FieldByName("db"), conn.Elem().FieldByName("tls")
	call := reflect.ValueOf(sqlite3.Xsqlite3_system_errno)
	if db.Kind() != reflect.Uintptr || tls.Kind() != reflect.Pointer || tls.Type() != call.Type().In(0) {
		return 0
	}
	answer := call.Call([]reflect.Value{reflect.NewAt(tls.Type().Elem(), tls.UnsafePointer()), reflect.ValueOf(uintptr(db.Uint()))})
	return syscall.Errno(answer[0].Int())
}
