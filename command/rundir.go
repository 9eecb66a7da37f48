package command

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/ownership"
)

const (
	runPrefix = "karve-run-"
	// runLeast is how old a directory is before it is taken for one that was left: its lock
	// is made a moment after it.
	runLeast = time.Minute
	// removeTries is how often a directory is removed in which a server may still be making
	// files, since it was not waited for.
	removeTries = 20
)

// runDir makes a temporary directory for a cluster, which has the keys of its authorities. It
// goes with remove, or before a second signal ends the process. Directories that killed
// processes have left are removed first.
func runDir(ctx context.Context) (dir string, remove func() error, err error) {
	sweepRuns(os.TempDir())
	if dir, err = os.MkdirTemp("", runPrefix); err != nil {
		return "", nil, err
	}
	forget := lastly(ctx, func() { removeBusy(dir) })
	lock, err := directory.Acquire(dir)
	if err != nil {
		forget()
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, func() error {
		err := errors.Join(lock.Close(), os.RemoveAll(dir))
		forget()
		return err
	}, nil
}

func removeBusy(dir string) {
	for range removeTries {
		if os.RemoveAll(dir) == nil {
			return
		}
	}
}

// sweepRuns removes the directories of this user's that no process holds any more. One
// without a lock is not known to be unused, and stays.
func sweepRuns(temp string) {
	entries, _ := os.ReadDir(temp) // who cannot list it can still make a directory there
	for _, entry := range entries {
		dir := filepath.Join(temp, entry.Name())
		if ok, _ := filepath.Match(runPrefix+"*", entry.Name()); !ok || !entry.IsDir() {
			continue
		}
		info, err := entry.Info()
		if err != nil || !ownership.Mine(info) || time.Since(info.ModTime()) < runLeast {
			continue
		}
		if _, err := os.Lstat(filepath.Join(dir, "lock")); err != nil {
			continue
		}
		if _, held, err := directory.Holder(dir); err == nil && !held {
			os.RemoveAll(dir) // what stays, the next one removes
		}
	}
}
