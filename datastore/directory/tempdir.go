package directory

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/ownership"
)

// TempDir is a directory (0700) in which a file is being made that belongs beside it, or which has
// what only one process needs. A lock in it shows that a process is at work. If that process is
// killed, the next TempDir of its kind beside it, or [RemoveAbandoned], removes the directory.
type TempDir struct {
	dir  string
	lock *os.File
}

// The name of a TempDir has a number between these.
const (
	tempPrefix = ".karve-"
	tempSuffix = ".partial"
)

// lockName is the file in a TempDir whose lock its process holds. No other directory has a file of
// that name: it is what tells an abandoned TempDir from a directory of a user's, such as a data
// directory.
const lockName = ".karve-temporary"

// NewTempDir makes the directory in above. It first removes those that killed processes have left
// there.
func NewTempDir(above string) (*TempDir, error) {
	RemoveAbandoned(above)
	return newTempDir(above, tempPrefix, tempSuffix)
}

// NewPrivate makes a directory among the temporary files of the system, for this process alone. Its
// name is prefix and a number. It first removes those that killed processes of this user have left.
func NewPrivate(prefix string) (*TempDir, error) {
	removeAbandoned(os.TempDir(), prefix, "", ownership.Mine) // others' are there as well
	return newTempDir(os.TempDir(), prefix, "")
}

func newTempDir(above, prefix, suffix string) (*TempDir, error) {
	for {
		dir, err := os.MkdirTemp(above, prefix+"*"+suffix)
		if err != nil {
			return nil, err
		}
		p := &TempDir{dir: dir}
		if p.lock, err = os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			err = tryLock(p.lock)
		}
		if err == nil {
			_, err = os.Lstat(p.lock.Name())
		}
		if err == nil {
			return p, nil
		}
		p.Remove()
		// Before the lock was taken, another process may take the directory for an abandoned one, and remove it.
		if !errors.Is(err, errHeld) && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

// Dir returns the path of the directory.
func (p *TempDir) Dir() string { return p.dir }

// File returns the path of the file to make.
func (p *TempDir) File() string { return filepath.Join(p.dir, "copy") }

// Remove removes the directory and everything in it.
func (p *TempDir) Remove() error {
	err := os.RemoveAll(p.dir) // while nobody else can have the lock
	if p.lock == nil {
		return err
	}
	p.lock.Close()
	if err != nil { // Windows does not remove open files
		err = os.RemoveAll(p.dir)
	}
	return err
}

// Place calls build with a new TempDir in the directory of to, and then gives the file that build has made in it the name to, durably. Without
// overwrite, the error is [fs.ErrExist] if there is a file of that name.
func Place(to string, overwrite bool, build func(*TempDir) error) error {
	temp, err := NewTempDir(filepath.Dir(to))
	if err != nil {
		return err
	}
	defer temp.Remove()
	if err := build(temp); err != nil {
		return err
	}
	if overwrite {
		return atomicfile.Rename(temp.File(), to)
	}
	return atomicfile.RenameNew(temp.File(), to)
}

// RemoveAbandoned removes the directories that killed processes have left in above. Those that a
// process still uses stay. It reports no error, because no work depends on it.
func RemoveAbandoned(above string) {
	removeAbandoned(above, tempPrefix, tempSuffix, func(fs.FileInfo) bool { return true })
}

func removeAbandoned(above, prefix, suffix string, may func(fs.FileInfo) bool) {
	entries, err := os.ReadDir(above)
	if err != nil {
		return
	}
	for _, entry := range entries {
		name, ok := strings.CutPrefix(entry.Name(), prefix)
		if !ok || !entry.IsDir() {
			continue
		}
		if name, ok = strings.CutSuffix(name, suffix); !ok || strings.Trim(name, "0123456789") != "" {
			continue
		}
		if info, err := entry.Info(); err != nil || !may(info) {
			continue
		}
		p := &TempDir{dir: filepath.Join(above, entry.Name())}
		if p.lock, err = openLock(filepath.Join(p.dir, lockName), 0); err == nil {
			err = tryLock(p.lock)
		}
		switch {
		case err == nil:
			p.Remove()
		case errors.Is(err, fs.ErrNotExist):
			// Its process has just made it, or was killed then: it is empty.
		default:
			if p.lock != nil {
				p.lock.Close()
			}
		}
	}
}
