package kineimport

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/enginetest"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/internal/eventually"
)

// openImported imports the table in a directory into another one, which has a file without data, and opens that.
func openImported(t testing.TB, from string) (*datastore.Engine, *Imported) {
	t.Helper()
	lock, err := directory.Acquire(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	open := func() *datastore.Engine {
		e, err := datastore.OpenEngine(lock, datastore.Options{BallastBytes: -1})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	open().Close()
	file := filepath.Join(from, FileName)
	out, err := Import(t.Context(), lock, file, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Import(t.Context(), lock, file, nil); !errors.Is(err, ErrNotEmpty) || !strings.Contains(err.Error(), datastore.EngineFile) {
		t.Errorf("a second time: %v, want ErrNotEmpty naming the file", err)
	}
	e := open()
	t.Cleanup(func() { e.Close() })
	return e, out
}

func TestImportKeepsRevisions(t *testing.T) {
	dir := t.TempDir()
	want, revision := enginetest.KineFixture(t, dir)
	before, _ := os.ReadFile(filepath.Join(dir, FileName))
	e, out := openImported(t, dir)
	if after, _ := os.ReadFile(filepath.Join(dir, FileName)); !bytes.Equal(before, after) || len(enginetest.Glob(t, dir, "state.db*")) != 1 {
		t.Errorf("the imported file was changed: %v", enginetest.Glob(t, dir, "*"))
	}
	enginetest.WantKeys(t, e, want)
	if out.Revision != revision || out.Keys != int64(len(want)) || out.Leases != 2 {
		t.Errorf("got %+v, want revision %d, %d keys, 2 leases", out, revision, len(want))
	}
	if e.Revision() != revision || e.CompactRevision() != revision {
		t.Errorf("got revision %d, compacted %d; want both %d", e.Revision(), e.CompactRevision(), revision)
	}
	for _, at := range []int64{1, revision - 1} {
		if _, err := e.Range(t.Context(), datastore.RangeRequest{Key: "/registry/old", Revision: at}); !errors.Is(err, datastore.ErrCompacted) {
			t.Errorf("range at %d: got %v, want ErrCompacted", at, err)
		}
		if _, err := e.Watch(datastore.WatchRequest{Key: "/registry/old", StartRevision: at}); !errors.Is(err, datastore.ErrCompacted) {
			t.Errorf("watch from %d: got %v, want ErrCompacted", at, err)
		}
	}
	// The newest revision itself was a deletion: a watch from it sees that.
	w, err := e.Watch(datastore.WatchRequest{Key: "/registry/", End: datastore.PrefixEnd("/registry/"), StartRevision: revision})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	resp, err := w.Next(t.Context())
	if err != nil || len(resp.Events) != 1 || resp.Events[0].Type != datastore.EventDelete || resp.Events[0].KV.Key != "/registry/gone" {
		t.Errorf("watch from the newest revision: %+v, %v; want the deletion", resp, err)
	}
	if got := enginetest.Put(t, e, "/registry/next", "v"); got != revision+1 {
		t.Errorf("next write: revision %d, want %d", got, revision+1)
	}
	if kv := enginetest.Get(t, e, "/registry/gone", 0); kv != nil {
		t.Errorf("deleted key is back: %+v", kv)
	}
}

func TestImportedLeases(t *testing.T) {
	dir := t.TempDir()
	enginetest.KineTable(t, dir, 0,
		enginetest.KineRow{ID: 3, Name: "/short", Created: true, TTL: 1, Value: "v"},
		enginetest.KineRow{ID: 4, Name: "/long", Created: true, TTL: 3600, Value: "v"},
		enginetest.KineRow{ID: 5, Name: "/endless", Created: true, TTL: 1 << 60, Value: "v"}).Close()
	e, _ := openImported(t, dir)
	kv := enginetest.Get(t, e, "/long", 0)
	l, err := e.TimeToLive(t.Context(), kv.Lease, true)
	if err != nil || l.TTL != 3600 || l.Remaining < 3500*time.Second || fmt.Sprint(l.Keys) != "[/long]" {
		t.Errorf("lease of /long: %+v, %v; want its own, of 3600 s", l, err)
	}
	if l, err := e.TimeToLive(t.Context(), enginetest.Get(t, e, "/endless", 0).Lease, false); err != nil || l.TTL != maxTTL || l.Remaining < time.Hour {
		t.Errorf("lease of /endless: %+v, %v", l, err)
	}
	eventually.True(t, "the lease of /short expires", func() bool { return enginetest.Get(t, e, "/short", 0) == nil })
	if enginetest.Get(t, e, "/long", 0) == nil {
		t.Error("/long went with it")
	}
}

// What is no table of kine's is refused, and nothing is left behind.
func TestRefusedImports(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(path string) error
		want    error
	}{
		{"no database", func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("none "), 1000), 0o600) }, sqlitefile.ErrCorrupt},
		{"empty", func(path string) error { return os.WriteFile(path, nil, 0o600) }, sqlitefile.ErrForeign},
		{"missing", func(string) error { return nil }, os.ErrNotExist},
		{"another program's", enginetest.MakeForeign, sqlitefile.ErrForeign},
	} {
		t.Run(c.name, func(t *testing.T) {
			file, dir := filepath.Join(t.TempDir(), FileName), t.TempDir()
			if err := c.prepare(file); err != nil {
				t.Fatal(err)
			}
			lock, err := directory.Acquire(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Close()
			if _, err := Import(t.Context(), lock, file, nil); !errors.Is(err, c.want) || !strings.Contains(err.Error(), file) {
				t.Errorf("got %v, want %v naming the file", err, c.want)
			}
			if left := enginetest.Glob(t, dir, "*"); len(left) != 1 {
				t.Errorf("left behind: %v, want the lock only", left)
			}
		})
	}
}

// A file that kine has open, with rows that are in its WAL only.
func TestImportOfFileInUse(t *testing.T) {
	from := t.TempDir()
	const id = 3
	db := enginetest.KineTable(t, from, 0, enginetest.KineRow{ID: id, Name: "/in/the/log", Created: true, Value: "v"})
	defer db.Close()
	if _, out := openImported(t, from); out.Revision != id || out.Keys != 1 {
		t.Errorf("got %+v, want 1 key at revision %d", out, id)
	}
	enginetest.AddKineRow(t, db, enginetest.KineRow{ID: 4, Name: "/later", Created: true, Value: "v"}) // its writer is not disturbed
	own := t.TempDir()
	enginetest.KineFixture(t, own)
	lock, err := directory.Acquire(own)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := CheckEmpty(lock); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("a directory with a state.db: %v, want ErrNotEmpty", err)
	}
}
