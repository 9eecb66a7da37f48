package command

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/ownership"
)

const (
	runPrefix = "karve-run-"
	// runLeast is the age at which an empty directory counts as left behind: its lock is created a moment
	// after it, and everything else after the lock.
	runLeast = time.Minute
)

// runDir creates a temporary directory for a cluster, whose CA keys are in it. It first removes the
// directories that processes have left which were killed, or ended by a second signal.
func runDir() (dir string, remove func() error, err error) {
	if err := options.CheckListed(os.TempDir()); err != nil {
		return "", nil, fmt.Errorf("the temporary directory (TMPDIR): %w", err)
	}
	sweepRuns(os.TempDir())
	if dir, err = os.MkdirTemp("", runPrefix); err != nil {
		return "", nil, err
	}
	lock, err := directory.Acquire(dir)
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, func() error { return errors.Join(lock.Close(), os.RemoveAll(dir)) }, nil
}

// sweepRuns removes this user's directories that no process holds any more. A directory without a
// lock may be in use, and stays.
func sweepRuns(temp string) {
	entries, _ := os.ReadDir(temp) // a user who cannot list it can still create a directory there
	for _, entry := range entries {
		dir := filepath.Join(temp, entry.Name())
		if ok, _ := filepath.Match(runPrefix+"*", entry.Name()); !ok || !entry.IsDir() {
			continue
		}
		info, err := entry.Info()
		if err != nil || !ownership.Mine(info) {
			continue
		}
		if inside, _ := os.ReadDir(dir); len(inside) < 2 && time.Since(info.ModTime()) < runLeast {
			continue
		}
		if _, err := os.Lstat(filepath.Join(dir, "lock")); err != nil {
			continue
		}
		if _, held, err := directory.Holder(dir); err == nil && !held {
			os.RemoveAll(dir) // the next karve run removes what is left
		}
	}
}
