package datastore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Lock is a data directory nobody else may use: an open file, dir/lock, with an
// exclusive lock on it. The kernel releases the lock with the process, so a
// crash leaves nothing to clean up; the pid in the file is only for the message
// another process prints.
type Lock struct {
	dir     string
	f       *os.File
	claimed bool // the directory is on a network's file system, and has our claim
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
	if err := MakeDir(dir); err != nil {
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
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil && !isFull(err) { // without room there is no pid, but the lock holds
		f.Close()
		return nil, fmt.Errorf("write lock of data directory: %w", err)
	}
	l := &Lock{dir: dir, f: f, claimed: networked(dir)}
	if l.claimed {
		if err := claimDir(dir, thisHost()); err != nil {
			f.Close()
			return nil, err
		}
	}
	return l, nil
}

// MakeDir makes a directory (0700) and what is missing above it, and makes the names
// durable: with the name of its directory, a power cut would take all that was ever
// written there. A directory that exists costs nothing.
func MakeDir(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	above := filepath.Dir(dir)
	if above != dir {
		if err := MakeDir(above); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	} else if info, statErr := os.Stat(dir); statErr != nil || !info.IsDir() {
		return errors.Join(err, statErr) // a file of that name
	}
	// Some file systems cannot sync directories, and some directories may be written but
	// not read: nothing more can be done there.
	if err := SyncDir(above); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
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
func (l *Lock) Close() error {
	var err error
	if l.claimed {
		err = unclaim(l.dir)
	}
	return errors.Join(err, l.f.Close())
}

var errHeld = errors.New("held by another process")
