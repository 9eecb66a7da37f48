package sqlitefile

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	sqlite3 "modernc.org/sqlite/lib"
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

// BusyWith returns [ErrBusy] with the programs that have locked the database, as far as they
// are known.
func BusyWith(path string) error {
	return fmt.Errorf("%w: %s is open in %s (close it there)", ErrBusy, path, lockHolders(path))
}

func lockHolders(path string) string {
	var names []string
	for _, pid := range LockingProcesses(path) {
		name := fmt.Sprintf("process %d", pid)
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil {
			name += " (" + strings.TrimSpace(string(text)) + ")"
		}
		names = append(names, name)
	}
	if names == nil {
		return "another process"
	}
	return strings.Join(names, ", ")
}

const (
	// BusyPatience is how long a start waits for other programs to close the database.
	BusyPatience = 15 * time.Second

	busyRetry = 50 * time.Millisecond
)

// patiently calls try until it returns something other than another program's lock, or until
// patience is over. It calls waiting once for each program that it waits for.
func patiently(path string, patience time.Duration, waiting func(error), try func() error) error {
	told := ""
	for deadline := time.Now().Add(patience); ; time.Sleep(busyRetry) {
		err := try()
		if !IsBusy(err) {
			return err
		}
		busy := BusyWith(path)
		if waiting != nil && busy.Error() != told {
			told = busy.Error()
			waiting(busy) // even if one try has taken all of the patience
		}
		if time.Now().After(deadline) {
			return busy
		}
	}
}
