package sqlitefile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/karve-k8s/karve/datastore/directory"
)

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
