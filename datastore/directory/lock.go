// Package directory keeps a data directory: its lock, temporary directories in it, and a
// reserve of space on its disk. It knows nothing of SQLite.
package directory

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/karve-k8s/karve/internal/atomicfile"
)

// ErrLocked is the error for a directory that another process has locked. The error that
// wraps it names that process.
var ErrLocked = errors.New("data directory is in use")

// ErrReplaced means that the name of a directory leads to another one than that which was locked.
var ErrReplaced = errors.New("another directory has taken its place")

// Lock keeps other processes out of a directory. It is an open file, dir/lock, with an
// exclusive flock on it. The kernel releases the lock with the process, so a crash leaves
// nothing to clean up. The pid in the file, and the PID namespace that it belongs to, are only for the
// message that another process prints.
type Lock struct {
	dir string
	f   *os.File
}

// Dir returns the directory.
func (l *Lock) Dir() string { return l.dir }

// How long Acquire waits for a lock. A killed process keeps its locks until the kernel has
// freed its memory, and Holder takes a free lock for a moment. Neither is a reason to refuse
// a start.
const (
	lockPatience = time.Second
	lockRetry    = 10 * time.Millisecond
)

// Acquire takes the lock of a directory, and makes the directory (0700) if it is missing.
// If another process holds the lock, the error wraps [ErrLocked] and names that process.
func Acquire(dir string) (*Lock, error) {
	if err := atomicfile.MakeDir(dir); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	path := filepath.Join(dir, "lock")
	f, err := openLock(path, os.O_CREATE)
	if err != nil {
		return nil, err
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
		return nil, fmt.Errorf("%w: %s is held by %s", ErrLocked, dir, holder(f))
	}
	// Not before: a process that is refused must not overwrite the holder's pid.
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid(), namespace())
	}
	if err != nil && !IsFull(err) { // a full disk costs the pid; the lock holds all the same
		f.Close()
		return nil, fmt.Errorf("write lock of data directory: %w", err)
	}
	return &Lock{dir, f}, nil
}

// Check returns an error unless the name of the directory still leads to the one that was locked. It wraps [ErrReplaced] if another one
// is there. Open files stay those of the locked directory, and every name in it means a file of the other.
func (l *Lock) Check() error {
	own, err := l.f.Stat()
	if err != nil {
		return err
	}
	its, err := os.Lstat(l.f.Name())
	if err == nil && !os.SameFile(own, its) {
		err = ErrReplaced
	}
	if err != nil {
		return fmt.Errorf("%s is no longer the directory in which this server began (%w): move that one back, or restart the server", l.dir, err)
	}
	return nil
}

// openLock opens a lock file. It opens no link and no device, to which another user could lead this process, and no FIFO, from
// which a reader would wait for ever.
func openLock(path string, flags int) (*os.File, error) {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("open lock of data directory: %s is not a regular file: remove it", path)
	}
	f, err := os.OpenFile(path, os.O_RDWR|lockFlags|flags, 0o600)
	if errors.Is(err, syscall.EROFS) {
		if flags&os.O_CREATE != 0 {
			return nil, ReadOnly(filepath.Dir(path))
		}
		f, err = os.OpenFile(path, os.O_RDONLY|lockFlags, 0) // the directory may be writable by another path, where a server holds it
	}
	if err != nil {
		return nil, fmt.Errorf("open lock of data directory: %w", err)
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, errors.Join(err, fmt.Errorf("open lock of data directory: %s is not a regular file: remove it", path))
	}
	return f, nil
}

func holder(f *os.File) string {
	if pid := readPID(f); pid != 0 {
		return fmt.Sprintf("process %d", pid)
	}
	return "another process"
}

// readPID returns the pid in a lock file. It is 0 if that is not known here: a process in another PID namespace has another
// number in this one, if it has any.
func readPID(f *os.File) int {
	text, err := io.ReadAll(f)
	number, its, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	if own := namespace(); err != nil || its != "" && own != "" && its != own {
		return 0
	}
	pid, _ := strconv.Atoi(number)
	return pid
}

// namespace names this process' PID namespace, where the system tells.
func namespace() string {
	name, _ := os.Readlink("/proc/self/ns/pid")
	return name
}

// Holder reports whether a process holds the lock of a directory, and which one; pid is 0 if
// that is not known. Nobody holds a directory that does not exist. To find out, Holder takes
// a free lock for a moment, and [Acquire] waits for it.
func Holder(dir string) (pid int, held bool, err error) {
	path := filepath.Join(dir, "lock")
	f, err := openLock(path, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	} else if err != nil {
		return 0, false, err
	}
	defer f.Close() // which also releases the lock
	err = tryLock(f)
	if err == nil {
		return 0, false, nil
	} else if !errors.Is(err, errHeld) {
		return 0, false, fmt.Errorf("read lock of data directory %s: %w", dir, err)
	}
	return readPID(f), true, nil
}

// Close releases the lock. Call it last, when nothing in the directory is open any more. The
// file stays: if it were removed, a third process could lock a new file of that name while a
// second one holds the old file.
func (l *Lock) Close() error { return l.f.Close() }

var errHeld = errors.New("held by another process")
