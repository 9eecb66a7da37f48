package directory

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

const lockFlags = 0

func tryLock(f *os.File) error {
	// The locked byte lies far behind the pid, so that the pid stays readable.
	at := windows.Overlapped{OffsetHigh: 1}
	err := windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return errHeld
	}
	return err
}
