package setup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/karve-k8s/karve/internal/ownership"
)

// errLocked means that another process has the lock.
var errLocked = errors.New("locked")

// lockName is the name of the lock in its directory. Only its owner can open it, and so nobody else can take the lock.
const lockName = ".karve-lock"

// Lock keeps other installations, upgrades and removals away from a directory of programs, or other commands from one of
// certificates, until unlock is called, or the process ends.
func Lock(dir string) (unlock func(), err error) {
	f, err := Begin(dir)
	if err != nil {
		return nil, err
	}
	return f.End, nil
}

func takeLock(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, lockName)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|lockFlags, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		info, err := f.Stat()
		if err == nil && (!info.Mode().IsRegular() || !ownership.Mine(info)) {
			err = fmt.Errorf("%s belongs to another user: remove it", path)
		}
		if err == nil {
			err = lock(f)
		}
		switch now, gone := os.Lstat(path); {
		case errors.Is(err, errLocked):
			err = fmt.Errorf("another command of Karve that changes %s is running on this machine: wait until it ends", dir)
		case err == nil && gone == nil && os.SameFile(info, now):
			return f, nil
		}
		f.Close()
		if err != nil {
			return nil, err
		}
	} // the process that had the lock has removed the file
}
