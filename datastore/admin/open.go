// Package admin does to the database of a directory what an administrator asks for: open it as it is
// found, restore a backup, salvage what can be read. No engine may have it open.
package admin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/kineimport"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// HasData reports whether a directory has a database, a table of kine's, or files of one. An unreadable
// directory counts as having data.
func HasData(dir string) bool {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	return err != nil || slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return strings.HasPrefix(e.Name(), datastore.EngineFile) || strings.HasPrefix(e.Name(), kineimport.FileName)
	})
}

// Open is [datastore.OpenEngine] for a directory as it is found. replaced reports that a restore or a salvage was
// stopped, and is now finished: the replaced database is beside the new one, as [Restore] and [Salvage] name it. Open refuses
// a directory that has a table of kine's only; see [kineimport.Import].
func Open(lock *directory.Lock, opts datastore.Options) (e *datastore.Engine, replaced bool, err error) {
	if opts.Durability != datastore.Memory && lock != nil {
		path := filepath.Join(lock.Dir(), datastore.EngineFile)
		if replaced, err = sqlitefile.FinishReplacement(path); err != nil {
			return nil, false, fmt.Errorf("open database: %w", err)
		}
		// A power cut may have left these.
		for _, unfinished := range []string{".importing", ".restoring", ".salvaging", ".migrating"} {
			if err := sqlitefile.Remove(path + unfinished); err != nil {
				return nil, false, fmt.Errorf("open database: %w", err)
			}
		}
		if err := kineimport.Waiting(lock.Dir()); err != nil {
			return nil, false, err
		}
	}
	e, err = datastore.OpenEngine(lock, opts)
	return e, replaced, err
}

// openPlain opens an engine for a command, without ballast and with a small cache.
func openPlain(lock *directory.Lock) (*datastore.Engine, error) {
	return datastore.OpenEngine(lock, datastore.Options{BallastBytes: -1, CacheBytes: 1 << 20})
}
