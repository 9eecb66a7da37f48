package directory

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/karve-k8s/karve/internal/atomicfile"
)

// ErrLocked: another process has the data directory open. The error that wraps it names
// that process.
var ErrLocked = errors.New("data directory is in use")

// Lock is a data directory nobody else may use: an open file, dir/lock, with an
// exclusive lock on it. The kernel releases the lock with the process, so a
// crash leaves nothing to clean up; the pid in the file is only for the message
// another process prints.
type Lock struct {
	dir     string
	f       *os.File
	claimed bool // the directory is on a network's file system, and has our claim
}

// Dir is the directory.
func (l *Lock) Dir() string { return l.dir }

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
func Acquire(dir string) (*Lock, error) {
	if err := atomicfile.MakeDir(dir); err != nil {
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
	if err != nil && !IsFull(err) { // without room there is no pid, but the lock holds
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

func holder(path string) string {
	b, err := os.ReadFile(path)
	pid := strings.TrimSpace(string(b))
	if err != nil || pid == "" {
		return "another process"
	}
	return "process " + pid
}

// Holder tells whether a process holds the lock of a data directory, and which:
// pid is 0 if that is not known. A directory that is not there is held by nobody.
// Asking takes the lock for a moment where it is free, which [LockDir] waits for.
func Holder(dir string) (pid int, held bool, err error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	} else if err != nil {
		return 0, false, fmt.Errorf("look at lock of data directory: %w", err)
	}
	defer f.Close() // and with it the lock, if we have got it
	err = tryLock(f)
	if err == nil {
		return 0, false, nil
	} else if !errors.Is(err, errHeld) {
		return 0, false, fmt.Errorf("look at lock of data directory %s: %w", dir, err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, true, nil
	}
	pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	return pid, true, nil
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
