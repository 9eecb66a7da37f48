package sqlitefile

import (
	"fmt"
	"reflect"
	"syscall"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/karve-k8s/karve/datastore/directory"
)

// withCause adds the system's error to SQLite's "disk I/O error" of a write: where a
// quota is used up, that says no more (only ENOSPC becomes SQLITE_FULL). Nothing was
// written then either, and the frame that commits is the last one, so it is a full disk.
// The same goes for making the database shorter at the end of a checkpoint, for which
// btrfs needs space: the log still counts as not copied, and the next checkpoint does it.
//
// A failed fsync is another matter, whatever its cause: what it left is not known.
func (c *Connection) withCause(err error) error {
	switch extendedCode(err) {
	case sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_TRUNCATE:
	default:
		return err
	}
	errno := c.errno()
	if errno == syscall.EDQUOT || errno == syscall.ENOSPC {
		return fmt.Errorf("%w: %w: %w", directory.ErrNoSpace, errno, err)
	}
	if errno != 0 {
		return fmt.Errorf("%w: %w", err, errno)
	}
	return err
}

// errno is sqlite3_system_errno (https://sqlite.org/c3ref/system_errno.html), which the
// driver has no call for; 0 if it is not known.
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
