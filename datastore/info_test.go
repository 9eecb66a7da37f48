package datastore

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Info returns the same figures as a scan of the whole file, with and without a running engine.
func TestInfoAgreesWithStats(t *testing.T) {
	path := filepath.Join(t.TempDir(), EngineFile)
	if _, err := sqlitefile.ReadInfo(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: got %v", err)
	}
	e, lock := openLocked(t, filepath.Dir(path), Options{})
	defer lock.Close()
	put(t, e, "/a", "v")
	compare := func(when string, got *sqlitefile.Info, err error, from sqlitefile.Source) {
		t.Helper()
		want, scanned := backup.ReadStats(t.Context(), from)
		if err := errors.Join(err, scanned); err != nil {
			t.Fatal(err)
		}
		if got.Revision != want.Revision || got.Revision != 2 || got.SchemaVersion != want.SchemaVersion || got.Bytes != want.FileBytes || got.WALBytes != want.WALBytes {
			t.Errorf("%s: got %+v, want revision 2 and the figures of %+v", when, got, want)
		}
	}
	info, err := e.Info()
	compare("in use", info, err, e.Source())
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	info, err = sqlitefile.ReadInfo(path)
	compare("at rest", info, err, sqlitefile.ClosedFile(path))
}
