package datastore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Lock is a data directory nobody else may use: an open file, dir/lock, with an
// exclusive lock on it. The kernel releases the lock with the process, so a
// crash leaves nothing to clean up; the pid in the file is only for the message
// another process prints.
type Lock struct {
	dir string
	f   *os.File
}

// How long a lock is waited for. A process that has been killed keeps its locks
// until the kernel has taken its memory apart, and one that only asks whether a
// directory is in use (inUse) holds it for a moment: neither is a reason to refuse
// a start.
const (
	lockPatience = time.Second
	lockRetry    = 10 * time.Millisecond
)

// LockDir takes the lock of a data directory, making the directory (0700) if it
// is missing. The error wraps [ErrLocked] and names the process that holds it.
func LockDir(dir string) (*Lock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock of data directory: %w", err)
	}
	err = tryLock(f)
	for deadline := time.Now().Add(lockPatience); errors.Is(err, errHeld) && time.Now().Before(deadline); {
		time.Sleep(lockRetry)
		err = tryLock(f)
	}
	if err != nil {
		defer f.Close()
		if !errors.Is(err, errHeld) {
			return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
		}
		return nil, fmt.Errorf("%w: %s is held by %s", ErrLocked, dir, holder(path))
	}
	// Only now: the pid of a holder is not overwritten by one who was refused.
	if err := f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("write lock of data directory: %w", err)
		}
	}
	return &Lock{dir, f}, nil
}

func holder(path string) string {
	b, err := os.ReadFile(path)
	pid := strings.TrimSpace(string(b))
	if err != nil || pid == "" {
		return "another process"
	}
	return "process " + pid
}

// Close releases the lock: the last thing to happen to a data directory. The file stays: removing it would let a third
// process lock a name the second one no longer sees.
func (l *Lock) Close() error { return l.f.Close() }

var errHeld = errors.New("held by another process")
