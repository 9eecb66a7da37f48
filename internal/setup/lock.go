package setup

import (
	"errors"
	"fmt"
	"os"
)

// errLocked means that another process has the lock.
var errLocked = errors.New("locked")

// Lock keeps other installations, upgrades and removals away from a directory of programs, or other commands from one of
// certificates, until unlock is called, or the process ends. It leaves no file there.
func Lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := lock(d); err != nil {
		d.Close()
		if errors.Is(err, errLocked) {
			return nil, fmt.Errorf("another command of Karve that changes %s is running on this machine: wait until it ends", dir)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() {
		release(d)
		d.Close()
	}, nil
}
