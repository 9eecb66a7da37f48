package process

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/flock"
)

const (
	tempPrefix = "karve-cluster-"
	// tempLock is the file with the lock. A data directory, which a user may call karve-cluster-…, has none of that name.
	tempLock = ".karve-temporary"
	// tempLeast is the age at which an empty directory may count as left behind: its lock is created a
	// moment after it, and everything else after the lock.
	tempLeast = time.Minute
)

// tempDir is a directory for what has the keys of a cluster. The process that made it holds a
// lock in it.
type tempDir struct {
	path string
	lock *flock.Flock
}

// newTempDir makes a directory. It first removes the directories of this user that killed tests
// have left.
func newTempDir() (*tempDir, error) {
	sweep(os.TempDir())
	path, err := os.MkdirTemp("", tempPrefix)
	if err != nil {
		return nil, err
	}
	d := &tempDir{path, flock.New(filepath.Join(path, tempLock))}
	if _, err := d.lock.TryLock(); err != nil {
		return nil, errors.Join(err, d.remove())
	}
	return d, nil
}

func (d *tempDir) remove() error { return errors.Join(d.lock.Close(), os.RemoveAll(d.path)) }

// sweep removes the directories in above whose processes are gone.
func sweep(above string) {
	found, _ := filepath.Glob(filepath.Join(above, tempPrefix+"*")) // the pattern is valid
	for _, path := range found {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || !mine(info) || mountedBelow(path) {
			continue
		}
		if inside, _ := os.ReadDir(path); len(inside) < 2 && time.Since(info.ModTime()) < tempLeast {
			continue
		}
		lock := flock.New(filepath.Join(path, tempLock), flock.SetFlag(os.O_RDWR)) // a new file would keep its owner from removing the directory
		if free, err := lock.TryLock(); free && err == nil {
			_ = (&tempDir{path, lock}).remove() // the next test removes what is left
		}
	}
}

// mountedBelow reports whether a file system is mounted below a directory. Only Linux tells.
func mountedBelow(dir string) bool {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	if full, err := filepath.EvalSymlinks(dir); err == nil {
		dir = full
	}
	return strings.Contains(string(mounts), " "+strings.NewReplacer(`\`, `\134`, " ", `\040`).Replace(dir)+"/")
}

// clusterDir returns a new directory for the data of a cluster. It is removed when the test ends. If
// the test is killed, the next test that starts a cluster removes it.
func clusterDir(t testing.TB) string {
	t.Helper()
	d, err := newTempDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.remove(); err != nil {
			t.Errorf("remove the directory of a cluster: %v", err)
		}
	})
	return filepath.Join(d.path, "karve")
}
