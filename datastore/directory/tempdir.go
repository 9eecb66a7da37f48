package directory

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// TempDir is a directory (0700) beside a file that is being made in it. A lock in it shows
// that a process is at work. The next TempDir for the same file removes what a killed process
// has left.
type TempDir struct {
	dir  string
	lock *os.File
}

func tempDirNames(to string) (prefix, suffix string) {
	return "." + filepath.Base(to) + ".", ".partial"
}

// NewTempDir makes the directory for the file that is to be called to.
func NewTempDir(to string) (*TempDir, error) {
	removeAbandoned(to)
	prefix, suffix := tempDirNames(to)
	dir, err := os.MkdirTemp(filepath.Dir(to), prefix+"*"+suffix)
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

// File returns the path of the file to make.
func (p *TempDir) File() string { return filepath.Join(p.dir, "copy") }

// Remove removes the directory and everything in it.
func (p *TempDir) Remove() error {
	if p.lock != nil {
		p.lock.Close()
	}
	return os.RemoveAll(p.dir)
}

// stageName is the file that the directories of NewStage are named after.
const stageName = "karve-staged"

// NewStage makes a directory (0700) in above. remove removes it with its files. If the process
// is killed before, [RemoveStages] does so.
func NewStage(above string) (dir string, remove func() error, err error) {
	p, err := NewTempDir(filepath.Join(above, stageName))
	if err != nil {
		return "", nil, err
	}
	return p.dir, p.Remove, nil
}

// RemoveStages removes the stages that killed processes have left in above. Those that a
// process still uses stay.
func RemoveStages(above string) { removeAbandoned(filepath.Join(above, stageName)) }

// removeAbandoned removes what killed processes have left beside the file to. It reports no
// error, because the file can be made all the same.
func removeAbandoned(to string) {
	entries, err := os.ReadDir(filepath.Dir(to))
	if err != nil {
		return
	}
	prefix, suffix := tempDirNames(to)
	for _, entry := range entries {
		name, ok := strings.CutPrefix(entry.Name(), prefix)
		if !ok || !entry.IsDir() {
			continue
		}
		if name, ok = strings.CutSuffix(name, suffix); !ok || strings.Trim(name, "0123456789") != "" {
			continue
		}
		p := &TempDir{dir: filepath.Join(filepath.Dir(to), entry.Name())}
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
