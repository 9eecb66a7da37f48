package datastore

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Info returns the same figures as a scan of the whole file, with and without a running engine.
func TestInfoAgreesWithStats(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, EngineFile)
	if _, err := sqlitefile.ReadInfo(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: got %v", err)
	}
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	e, err := OpenEngine(lock, Options{})
	if err != nil {
		t.Fatal(err)
	}
	compare := func(when string) {
		t.Helper()
		look := e.Info
		scan := func(ctx context.Context) (*backup.Stats, error) { return backup.ReadStats(ctx, e.Source()) }
		if when == "at rest" {
			look = func() (*sqlitefile.Info, error) { return sqlitefile.ReadInfo(path) }
			scan = func(ctx context.Context) (*backup.Stats, error) {
				return backup.ReadStats(ctx, sqlitefile.ClosedFile(path))
			}
		}
		got, err := look()
		if err != nil {
			t.Fatal(err)
		}
		want, err := scan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got.Revision != want.Revision || got.SchemaVersion != want.SchemaVersion || got.Bytes != want.FileBytes || got.WALBytes != want.WALBytes {
			t.Errorf("%s: got %+v, want the figures of %+v", when, got, want)
		}
	}
	compare("new")
	for range 5 {
		if _, err := e.Put(t.Context(), PutRequest{Key: "/a", Value: []byte("v")}); err != nil {
			t.Fatal(err)
		}
	}
	compare("written to")
	if look, _ := e.Info(); look.Revision != 6 {
		t.Errorf("revision: got %d, want 6", look.Revision)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	compare("at rest")
}
