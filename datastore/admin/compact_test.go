package admin

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/enginetest"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

func TestCompactFile(t *testing.T) {
	dir := t.TempDir()
	e, lock := enginetest.OpenLocked(t, dir, datastore.Options{})
	defer lock.Close()
	for i := range 1000 {
		enginetest.Put(t, e, "/one", strings.Repeat(fmt.Sprint(i), 1000))
	}
	at := e.Revision()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		c, err := Compact(t.Context(), lock)
		if err != nil || c.Revision != at || c.After > 100<<10 {
			t.Errorf("got %+v, %v; want revision %d in a small file", c, err, at)
		}
	}
	path := filepath.Join(dir, datastore.EngineFile)
	if v, err := backup.Verify(t.Context(), sqlitefile.ClosedFile(path), nil); err != nil || !v.OK || v.Rows != 1 {
		t.Errorf("verify: %+v, %v; want 1 row", v, err)
	}
	e, err := datastore.OpenEngine(lock, datastore.Options{BallastBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	enginetest.WantValue(t, e, "/one", strings.Repeat("999", 1000))
}
