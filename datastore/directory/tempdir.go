package directory

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/karve-k8s/karve/internal/atomicfile"
)

// TempDir is a directory (0700) in which a file is being made that belongs beside it. A lock in
// it shows that a process is at work. If that process is killed, the next TempDir beside it, or
// [RemoveAbandoned], removes the directory.
type TempDir struct {
	dir  string
	lock *os.File
}

// The name of a TempDir has a number between these.
const (
	tempPrefix = ".karve-"
	tempSuffix = ".partial"
)

// NewTempDir makes the directory in above. It first removes those that killed processes have left
// there.
func NewTempDir(above string) (*TempDir, error) {
	RemoveAbandoned(above)
	dir, err := os.MkdirTemp(above, tempPrefix+"*"+tempSuffix)
	if err != nil {
		return nil, err
	}
	p := &TempDir{dir: dir}
	if p.lock, err = os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
		err = tryLock(p.lock)
	}
	if err != nil {
		p.Remove()
		return nil, err
	}
	return p, nil
}

// Dir returns the path of the directory.
func (p *TempDir) Dir() string { return p.dir }

// File returns the path of the file to make.
func (p *TempDir) File() string { return filepath.Join(p.dir, "copy") }

// Remove removes the directory and everything in it.
func (p *TempDir) Remove() error {
	if p.lock != nil {
		p.lock.Close()
	}
	return os.RemoveAll(p.dir)
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
	entries, err := os.ReadDir(above)
	if err != nil {
		return
	}
	for _, entry := range entries {
		name, ok := strings.CutPrefix(entry.Name(), tempPrefix)
		if !ok || !entry.IsDir() {
			continue
		}
		if name, ok = strings.CutSuffix(name, tempSuffix); !ok || strings.Trim(name, "0123456789") != "" {
			continue
		}
		p := &TempDir{dir: filepath.Join(above, entry.Name())}
		if p.lock, err = os.OpenFile(filepath.Join(p.dir, "lock"), os.O_RDWR, 0); err == nil {
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
