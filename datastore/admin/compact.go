package admin

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Compaction describes what Compact has done.
type Compaction struct {
	Path     string `json:"path"`
	Revision int64  `json:"revision"` // the new compaction revision
	Before   int64  `json:"before"`   // size of the file in bytes
	After    int64  `json:"after"`
}

// Compact compacts the database in a locked directory to its newest revision, and returns all free
// pages to the file system.
func Compact(ctx context.Context, lock *directory.Lock) (*Compaction, error) {
	out := &Compaction{Path: filepath.Join(lock.Dir(), datastore.EngineFile)}
	info, err := os.Stat(out.Path)
	if err != nil {
		return nil, fmt.Errorf("compact datastore: %w", err)
	}
	out.Before = info.Size()
	e, err := openPlain(lock)
	if err != nil {
		return nil, err
	}
	out.Revision = e.Revision()
	err = e.Compact(ctx, out.Revision, true)
	if errors.Is(err, datastore.ErrCompacted) {
		err = e.WaitTidy(ctx) // an earlier compaction may not have deleted everything
	}
	if err := errors.Join(err, e.Close()); err != nil {
		return nil, err
	}
	if err := shrink(ctx, out.Path); err != nil {
		return nil, err
	}
	if info, err = os.Stat(out.Path); err != nil {
		return nil, fmt.Errorf("compact datastore: %w", err)
	}
	out.After = info.Size()
	return out, nil
}

// shrink returns the free pages of a closed database to the file system.
func shrink(ctx context.Context, path string) error {
	c, err := sqlitefile.Connect(path, url.Values{"_pragma": {"synchronous(FULL)", "cache_size(-8192)"}})
	if err != nil {
		return sqlitefile.Explain(path, err)
	}
	err = c.ExecContext(ctx, path, `PRAGMA incremental_vacuum`)
	if closing := c.Close(); err == nil && closing != nil {
		err = sqlitefile.Explain(path, closing)
	}
	return err
}
