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
	dir  string   // leads to the directory, also if another user has exchanged its name
	name string   // at first
	held *os.File // the directory, if other users may exchange its name
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

// formerLock is the lock file of earlier releases, in a directory that had nothing else but copies and directories of this kind.
const formerLock = "lock"

// NewTempDir makes the directory in above. It first removes those that killed processes have left
// there.
func NewTempDir(above string) (*TempDir, error) {
	RemoveAbandoned(above)
	return newTempDir(above, tempPrefix, tempSuffix)
}

// NewPrivate makes a directory among the temporary files of the system, for this process alone. Its
// name is prefix and a number. It first removes those that killed processes of this user have left.
func NewPrivate(prefix string) (*TempDir, error) {
	removeAbandoned(os.TempDir(), prefix, "")
	return newTempDir(os.TempDir(), prefix, "")
}

func newTempDir(above, prefix, suffix string) (*TempDir, error) {
	for {
		name, err := os.MkdirTemp(above, prefix+"*"+suffix)
		if err != nil {
			return nil, err
		}
		p := &TempDir{dir: name, name: name}
		if Shared(above) {
			p.held, p.dir, err = hold(name)
		}
		if err == nil {
			p.lock, err = os.OpenFile(filepath.Join(p.dir, lockName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		}
		if err == nil {
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

// Shared reports whether other users may exchange the names in a directory.
func Shared(dir string) bool {
	info, err := os.Stat(dir)
	if err != nil {
		return false // whoever uses it gets the error
	}
	owner, known := ownership.Of(info)
	others := info.Mode().Perm()&0o022 != 0 && info.Mode()&os.ModeSticky == 0
	return known && (others || owner.UID != 0 && !ownership.Mine(info))
}

// Dir returns the path of the directory.
func (p *TempDir) Dir() string { return p.dir }

// File returns the path of the file to make.
func (p *TempDir) File() string { return filepath.Join(p.dir, fileName) }

const fileName = "copy"

// Remove removes the directory and everything in it.
func (p *TempDir) Remove() error {
	err := p.clear() // while nobody else can have the lock
	if p.lock != nil {
		p.lock.Close()
	}
	if err != nil { // Windows does not remove open files
		err = p.clear()
	}
	if p.held != nil {
		p.held.Close()
	}
	return err
}

func (p *TempDir) clear() error {
	if p.dir == p.name {
		return os.RemoveAll(p.name)
	}
	entries, err := os.ReadDir(p.dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(p.dir, e.Name())))
	}
	if gone := os.Remove(p.name); !errors.Is(gone, fs.ErrNotExist) { // the name may be another directory's now
		err = errors.Join(err, gone)
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

// RemoveAbandoned removes the directories that killed processes of this user have left in above. Those that a
// process still uses stay, and those in which something is mounted. It reports no error, because no work depends on it.
func RemoveAbandoned(above string) { removeAbandoned(above, tempPrefix, tempSuffix) }

func removeAbandoned(above, prefix, suffix string) {
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
		dir := filepath.Join(above, entry.Name())
		if info, err := entry.Info(); err != nil || !ownership.Mine(info) || mountedBelow(dir) {
			continue
		}
		p := &TempDir{dir: dir, name: dir}
		if p.lock, err = openLock(filepath.Join(dir, markOf(dir, suffix)), 0); err == nil {
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

// markOf returns the name of the file that makes a directory a TempDir. What an earlier release has left may have all Secrets of a cluster.
func markOf(dir, suffix string) string {
	entries, _ := os.ReadDir(dir)
	files, others := 0, 0
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), fileName):
			files++
		case e.Name() != formerLock && !strings.HasPrefix(e.Name(), tempPrefix):
			others++
		}
	}
	if suffix == tempSuffix && files > 0 && others == 0 {
		if mark, err := Exists(filepath.Join(dir, lockName)); err == nil && !mark {
			return formerLock
		}
	}
	return lockName
}

// mountedBelow reports whether a file system is mounted below a directory. Only Linux tells.
func mountedBelow(dir string) bool {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	if full, err := filepath.EvalSymlinks(dir); err == nil {
		dir = full
	}
	dir, _ = filepath.Abs(dir)
	return haveBelow(string(mounts), dir)
}

func haveBelow(mounts, dir string) bool {
	escaped := strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`).Replace(dir)
	return strings.Contains(mounts, " "+strings.TrimSuffix(escaped, "/")+"/")
}
