package sqlitefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/atomicfile"
)

// replacementSuffix ends the name of a finished database that is to replace the one beside it.
const replacementSuffix = ".replacement"

// Replace replaces the database at path, which need not exist, by a finished one, which is durable and
// whole. The caller holds the lock of the directory and has kept what it needs of the old database.
//
// A WAL belongs to whichever file has the name of the database, so the old WAL has to go before the new
// file can have that name, and the old file may be nothing without it. That is why the new file first gets
// a name that says so, in one durable step: a stop before this step leaves the old database with its
// WAL, and after a stop behind it, [FinishReplacement] goes on. Open calls that.
func Replace(path, finished string) error {
	err := atomicfile.Rename(finished, path+replacementSuffix)
	if err == nil {
		_, err = FinishReplacement(path)
	}
	if there, _ := directory.Exists(path + replacementSuffix); err != nil && there {
		return fmt.Errorf("%w: the next start puts %s in its place", err, path+replacementSuffix)
	}
	return err
}

// FinishReplacement finishes a [Replace] that was stopped, and reports whether there was one. The caller
// holds the lock of the directory.
func FinishReplacement(path string) (bool, error) {
	if there, err := directory.Exists(path + replacementSuffix); err != nil || !there {
		return false, err
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	if err := atomicfile.SyncDir(filepath.Dir(path)); err != nil {
		return false, err
	}
	return true, atomicfile.Rename(path+replacementSuffix, path)
}

// current returns the file that has the contents of the database at path: its replacement, if a [Replace]
// was stopped.
func current(path string) string {
	if there, err := directory.Exists(path + replacementSuffix); err == nil && there {
		return path + replacementSuffix
	}
	return path
}
