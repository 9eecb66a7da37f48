package kineimport

import (
	"bytes"
	"context"
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
	"github.com/karve-k8s/karve/internal/filemode"
)

func init() {
	enginetest.Child(func(dir, _ string, _ func(string)) error {
		lock, err := directory.Acquire(dir)
		if err != nil {
			return err
		}
		defer lock.Close()
		_, err = Convert(context.Background(), lock, nil)
		return err
	})
}

func openConverted(t testing.TB, dir string) (*datastore.Engine, *Conversion, *directory.Lock) {
	t.Helper()
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	c, err := Convert(t.Context(), lock, nil)
	if err != nil {
		t.Fatal(err)
	}
	e, err := datastore.OpenEngine(lock, datastore.Options{BallastBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e, c, lock
}

func TestConversionKeepsRevisions(t *testing.T) {
	dir := t.TempDir()
	want, revision := enginetest.KineFixture(t, dir)
	e, c, _ := openConverted(t, dir)
	enginetest.WantKeys(t, e, want)
	if c == nil || c.Revision != revision || c.Keys != int64(len(want)) || c.Leases != 2 || c.Kept != filepath.Join(dir, FileName+ConvertedSuffix) {
		t.Errorf("conversion: got %+v, want revision %d, %d keys, 2 leases", c, revision, len(want))
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

func TestConvertedLeases(t *testing.T) {
	dir := t.TempDir()
	w, done := enginetest.NewKineTable(t, dir)
	w.Create("/short", "v", 1)
	w.Create("/long", "v", 3600)
	w.Create("/endless", "v", 1<<60)
	done()
	e, _, _ := openConverted(t, dir)
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

func TestConversionIsDoneOnce(t *testing.T) {
	dir := t.TempDir()
	want, revision := enginetest.KineFixture(t, dir)
	old, err := os.ReadFile(filepath.Join(dir, FileName))
	if err != nil {
		t.Fatal(err)
	}
	e, _, lock := openConverted(t, dir)
	enginetest.Put(t, e, "/later", "v")
	e.Close()
	lock.Close()
	if kept, err := os.ReadFile(filepath.Join(dir, FileName+ConvertedSuffix)); err != nil || !bytes.Equal(kept, old) {
		t.Errorf("the old file is not what it was (%v)", err)
	}
	for name, mode := range map[string]os.FileMode{datastore.EngineFile: 0o600, FileName + ConvertedSuffix: 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || !filemode.Is(info, mode) {
			t.Errorf("%s: %v, %v, want mode %o", name, info, err, mode)
		}
	}
	e, c, lock := openConverted(t, dir)
	if c != nil {
		t.Errorf("converted again: %+v", c)
	}
	if e.Revision() != revision+1 {
		t.Errorf("revision %d, want %d", e.Revision(), revision+1)
	}
	want["/later"] = *enginetest.Get(t, e, "/later", 0)
	enginetest.WantKeys(t, e, want)
	e.Close()
	lock.Close()

	// A downgrade in between: what it wrote is neither used nor lost.
	w, done := enginetest.NewKineTable(t, dir)
	w.Create("/downgraded", "v", 0)
	done()
	lock, err = directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	for range 2 {
		_, err := Convert(t.Context(), lock, nil)
		if !errors.Is(err, ErrTwoStores) || !strings.Contains(err.Error(), FileName) || !strings.Contains(err.Error(), datastore.EngineFile) {
			t.Errorf("got %v, want ErrTwoStores naming both", err)
		}
	}
	if left := enginetest.Glob(t, dir, "*-wal"); len(left) > 0 {
		t.Errorf("WALs left: %v", left)
	}
}

func TestConversionWithoutCleanStop(t *testing.T) {
	dir := t.TempDir()
	w, done := enginetest.NewKineTable(t, dir)
	id := w.Create("/in/the/log", "v", 0)
	// A copy with its WAL, as a crash leaves it.
	crashed := t.TempDir()
	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(filepath.Join(dir, FileName+suffix))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(crashed, FileName+suffix), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	done()
	e, _, _ := openConverted(t, crashed)
	if kv := enginetest.Get(t, e, "/in/the/log", 0); kv == nil || kv.ModRevision != id {
		t.Errorf("got %+v, want revision %d", kv, id)
	}
}

func TestConversionRefusals(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(dir string) error
		want    error
	}{
		{"no database", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, FileName), bytes.Repeat([]byte("none "), 1000), 0o600)
		}, sqlitefile.ErrCorrupt},
		{"another program's", func(dir string) error {
			return enginetest.MakeForeign(filepath.Join(dir, FileName))
		}, sqlitefile.ErrForeign},
		{"WAL of a lost engine file", func(dir string) error {
			enginetest.KineFixture(t, dir)
			return os.WriteFile(filepath.Join(dir, datastore.EngineFile+"-wal"), []byte("log"), 0o600)
		}, sqlitefile.ErrCorrupt},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := c.prepare(dir); err != nil {
				t.Fatal(err)
			}
			before, _ := os.ReadFile(filepath.Join(dir, FileName))
			lock, err := directory.Acquire(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Close()
			_, err = Convert(t.Context(), lock, nil)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("got %v, want %v naming the file", err, c.want)
			}
			if after, _ := os.ReadFile(filepath.Join(dir, FileName)); !bytes.Equal(before, after) {
				t.Error("the refused file was changed")
			}
			if left := enginetest.Glob(t, dir, "*.converting*"); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, FileName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e, c, _ := openConverted(t, dir)
	if c != nil || e.Revision() != 1 {
		t.Errorf("an empty file: %+v, revision %d; want a new store", c, e.Revision())
	}
}

func TestImport(t *testing.T) {
	from := t.TempDir()
	want, revision := enginetest.KineFixture(t, from)
	file := filepath.Join(from, FileName)
	before, _ := os.ReadFile(file)
	dir := filepath.Join(t.TempDir(), "data")
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	openTest := func() *datastore.Engine {
		e, err := datastore.OpenEngine(lock, datastore.Options{BallastBytes: -1})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	openTest().Close() // a file without data is no obstacle
	c, err := Import(t.Context(), lock, file, nil)
	if err != nil || c.Revision != revision || c.Keys != int64(len(want)) {
		t.Fatalf("import: %+v, %v; want revision %d", c, err, revision)
	}
	e := openTest()
	enginetest.WantKeys(t, e, want)
	e.Close()
	if after, _ := os.ReadFile(file); !bytes.Equal(before, after) || len(enginetest.Glob(t, from, "state.db*")) != 1 {
		t.Errorf("the imported file was changed: %v", enginetest.Glob(t, from, "*"))
	}
	if _, err := Import(t.Context(), lock, file, nil); !errors.Is(err, ErrNotEmpty) || !strings.Contains(err.Error(), datastore.EngineFile) {
		t.Errorf("a second time: %v, want ErrNotEmpty naming the file", err)
	}
	if _, err := Import(t.Context(), lock, filepath.Join(from, "none"), nil); err == nil {
		t.Error("a missing file: want an error")
	}
}

// A file that kine has open, with rows that are in its WAL only.
func TestImportOfFileInUse(t *testing.T) {
	from := t.TempDir()
	w, done := enginetest.NewKineTable(t, from)
	defer done()
	id := w.Create("/in/the/log", "v", 0)
	lock, err := directory.Acquire(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	c, err := Import(t.Context(), lock, filepath.Join(from, FileName), nil)
	if err != nil || c.Revision != id || c.Keys != 1 {
		t.Errorf("got %+v, %v; want 1 key at revision %d", c, err, id)
	}
	w.Create("/later", "v", 0) // its writer is not disturbed
	own := t.TempDir()
	enginetest.KineFixture(t, own)
	lock2, err := directory.Acquire(own)
	if err != nil {
		t.Fatal(err)
	}
	defer lock2.Close()
	if _, err := Import(t.Context(), lock2, filepath.Join(from, FileName), nil); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("beside a state.db of its own: %v, want ErrNotEmpty", err)
	}
}
