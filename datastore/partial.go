package datastore

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// partial is a directory, mode 0700, beside the file that is being made in it. A
// lock tells whether somebody is still at work: what a killed process leaves is
// removed by the next one that makes a file of that name.
type partial struct {
	dir  string
	lock *os.File
}

func partialNames(to string) (prefix, suffix string) {
	return "." + filepath.Base(to) + ".", ".partial"
}

// newPartial makes the directory for the file to.
func newPartial(to string) (*partial, error) {
	removeStale(to)
	prefix, suffix := partialNames(to)
	dir, err := os.MkdirTemp(filepath.Dir(to), prefix+"*"+suffix)
	if err != nil {
		return nil, err
	}
	p := &partial{dir: dir}
	if p.lock, err = os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
		err = tryLock(p.lock)
	}
	if err != nil {
		p.remove()
		return nil, err
	}
	return p, nil
}

// file makes an empty file, mode 0600.
func (p *partial) file() (string, error) {
	path := filepath.Join(p.dir, "copy")
	return path, os.WriteFile(path, nil, 0o600)
}

func (p *partial) remove() error {
	if p.lock != nil {
		p.lock.Close()
	}
	return os.RemoveAll(p.dir)
}

// stageName is what a stage is named after.
const stageName = "karve-staged"

// NewStage makes a directory (0700) in above, for files that remove removes. If the process
// is killed before, [RemoveStages] does.
func NewStage(above string) (dir string, remove func() error, err error) {
	p, err := newPartial(filepath.Join(above, stageName))
	if err != nil {
		return "", nil, err
	}
	return p.dir, p.remove, nil
}

// RemoveStages removes what killed processes have left of their stages in above. It leaves
// those that a process still uses.
func RemoveStages(above string) { removeStale(filepath.Join(above, stageName)) }

// removeStale removes what killed processes have left beside to. Whatever prevents
// it is no reason not to make the file.
func removeStale(to string) {
	entries, err := os.ReadDir(filepath.Dir(to))
	if err != nil {
		return
	}
	prefix, suffix := partialNames(to)
	for _, entry := range entries {
		name, ok := strings.CutPrefix(entry.Name(), prefix)
		if !ok || !entry.IsDir() {
			continue
		}
		if name, ok = strings.CutSuffix(name, suffix); !ok || strings.Trim(name, "0123456789") != "" {
			continue
		}
		p := &partial{dir: filepath.Join(filepath.Dir(to), entry.Name())}
		if p.lock, err = os.OpenFile(filepath.Join(p.dir, "lock"), os.O_RDWR, 0); err == nil {
			err = tryLock(p.lock)
		}
		switch {
		case err == nil:
			p.remove()
		case errors.Is(err, fs.ErrNotExist):
			// Made a moment ago, or killed in that moment: there is nothing in it.
		default:
			if p.lock != nil {
				p.lock.Close()
			}
		}
	}
}
