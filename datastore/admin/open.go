// Package admin does to the database of a directory what an administrator asks for: open it as it is
// found, restore a backup, salvage what can be read, compact it. No engine may have it open.
package admin

import (
	"context"
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

// HasData reports whether a directory has a database, a table of kine's, or files of one. If it cannot tell, it
// has.
func HasData(dir string) bool {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	return err != nil || slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return strings.HasPrefix(e.Name(), datastore.EngineFile) || strings.HasPrefix(e.Name(), kineimport.FileName)
	})
}

// Opened is what [Open] has done before it started the engine.
type Opened struct {
	Conversion *kineimport.Conversion // of a kine table; nil if there was none
	// Replaced says that a restore or a salvage was stopped, and is now finished. The replaced database is
	// beside the new one, as [Restore] and [Salvage] name it.
	Replaced bool
}

// Open is [datastore.OpenEngine] for a directory as it is found: it first converts a kine table.
func Open(ctx context.Context, lock *directory.Lock, opts datastore.Options) (*datastore.Engine, Opened, error) {
	var done Opened
	err := opts.Validate()
	if err == nil && opts.Durability != datastore.Memory && lock != nil {
		path := filepath.Join(lock.Dir(), datastore.EngineFile)
		if done.Replaced, err = sqlitefile.FinishReplacement(path); err != nil {
			return nil, Opened{}, fmt.Errorf("open database: %w", err)
		}
		done.Conversion, err = kineimport.Convert(ctx, lock, opts.Progress("converting "+kineimport.FileName))
	}
	if err != nil {
		return nil, Opened{}, err
	}
	e, err := datastore.OpenEngine(lock, opts)
	return e, done, err
}

// openPlain opens an engine for a command, without ballast and with a small cache.
func openPlain(lock *directory.Lock) (*datastore.Engine, error) {
	return datastore.OpenEngine(lock, datastore.Options{BallastBytes: -1, CacheBytes: 1 << 20})
}
