package admin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/enginetest"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// damage changes the file of that name in dir.
func damage(t *testing.T, dir, name string, change func([]byte) []byte) {
	t.Helper()
	path := filepath.Join(dir, name)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, change(b), 0o600); err != nil {
		t.Fatal(err)
	}
}

// leaf is the offset of the nth page of the log table that has rows.
func leaf(t *testing.T, b []byte, nth int) int {
	t.Helper()
	for at := 4096; at < len(b); at += 4096 {
		if b[at] == 0x0d && bytes.Contains(b[at:at+4096], []byte("/k/")) {
			if nth == 0 {
				return at
			}
			nth--
		}
	}
	t.Fatal("there are not so many pages with rows")
	return 0
}

func TestSalvage(t *testing.T) {
	for _, c := range []struct {
		name    string
		clean   bool
		damage  func(t *testing.T, dir string)
		least   int // keys of 100 that are saved
		problem string
	}{
		{"a page of rows", true, func(t *testing.T, dir string) {
			damage(t, dir, datastore.EngineFile, func(b []byte) []byte { at := leaf(t, b, 3); clear(b[at : at+4096]); return b })
		}, 95, "cannot be read"},
		{"the first and the last page of rows", true, func(t *testing.T, dir string) {
			damage(t, dir, datastore.EngineFile, func(b []byte) []byte {
				last := 0
				for n := range 5 {
					last = leaf(t, b, n)
				}
				first := leaf(t, b, 0)
				clear(b[first : first+4096])
				clear(b[last : last+4096])
				return b
			})
		}, 90, "cannot be read"},
		{"the type of the last page of rows", true, func(t *testing.T, dir string) {
			damage(t, dir, datastore.EngineFile, func(b []byte) []byte { b[bytes.LastIndex(b, []byte("299299299"))&^4095] ^= 1; return b })
		}, 95, `key "/k/099" goes back to revision 201`},
		{"the types of all pages but the last", true, func(t *testing.T, dir string) {
			damage(t, dir, datastore.EngineFile, func(b []byte) []byte {
				last := bytes.LastIndex(b, []byte("299299299")) &^ 4095
				for at := 4096; at < len(b); at += 4096 {
					if at != last && b[at] == 0x0d && bytes.Contains(b[at:at+4096], []byte("/k/")) {
						b[at] ^= 1
					}
				}
				return b
			})
		}, 1, `key "/k/000" is lost`},
		{"a bit of a value", true, func(t *testing.T, dir string) {
			damage(t, dir, datastore.EngineFile, func(b []byte) []byte { b[bytes.Index(b, []byte("299299299"))] ^= 1; return b })
		}, 100, `row 19726336 (revision 301) of key "/k/099" has a bad checksum`},
		{"a missing WAL", false, func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, datastore.EngineFile+"-wal")); err != nil {
				t.Fatal(err)
			}
		}, 0, "is missing or empty"},
		{"a bad frame of the WAL", false, func(t *testing.T, dir string) {
			damage(t, dir, datastore.EngineFile+"-wal", func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		}, 10, `has a bad checksum, and later commits follow it…key "/k/099" goes back to revision`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := enginetest.Written(t, c.clean)
			c.damage(t, dir)
			damaged := map[string]string{}
			for _, file := range enginetest.Glob(t, dir, datastore.EngineFile+"*") {
				b, _ := os.ReadFile(file)
				damaged[strings.TrimPrefix(file, filepath.Join(dir, datastore.EngineFile))] = string(b)
			}
			if err := enginetest.TryOpen(dir); !errors.Is(err, sqlitefile.ErrCorrupt) || !strings.Contains(err.Error(), "karve datastore salvage") {
				t.Fatalf("a start says %v, want it refused and what to do", err)
			}
			lock, err := directory.Acquire(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Close()
			s, err := Salvage(t.Context(), lock, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", s)
			for want := range strings.SplitSeq(c.problem, "…") {
				if text := strings.Join(s.Problems, "\n"); !strings.Contains(text, want) {
					t.Errorf("problems:\n%s\nwant %q", text, want)
				}
			}
			for suffix, want := range damaged {
				if b, _ := os.ReadFile(s.Kept + suffix); string(b) != want && suffix != "-shm" {
					t.Errorf("the damaged %s was not kept as it was", datastore.EngineFile+suffix)
				}
			}
			e, err := datastore.OpenEngine(lock, datastore.Options{BallastBytes: -1})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			resp, err := e.Range(t.Context(), datastore.RangeRequest{Key: "/k/", End: "/k0"})
			if err != nil {
				t.Fatal(err)
			}
			if len(resp.KVs) < c.least || int64(len(resp.KVs)) != s.Keys {
				t.Errorf("%d keys, said were %d, want %d at least", len(resp.KVs), s.Keys, c.least)
			}
			for _, kv := range resp.KVs {
				// Key n%100 had the values n, n+100, n+200, each written by its own revision.
				if want := strings.Repeat(fmt.Sprint(kv.ModRevision-2), 100); string(kv.Value) != want || fmt.Sprintf("/k/%03d", (kv.ModRevision-2)%100) != kv.Key {
					t.Errorf("%s of revision %d has a value that it never had", kv.Key, kv.ModRevision)
				}
			}
			if e.Revision() < backup.RevisionMargin || e.Revision() != s.Revision {
				t.Errorf("revision %d, said was %d, want it raised", e.Revision(), s.Revision)
			}
			if _, err := e.Watch(datastore.WatchRequest{Key: "/k/", StartRevision: 301}); !errors.Is(err, datastore.ErrCompacted) {
				t.Errorf("watch from before: %v, want %v", err, datastore.ErrCompacted)
			}
			enginetest.Put(t, e, "/k/next", "v")
		})
	}
}

// Salvage leaves alone what a start takes, what is no database of the engine, and what
// nothing can be read of.
func TestSalvageRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		clean  bool
		change func([]byte) []byte
		want   error
	}{
		{"a sound one", true, nil, ErrSound},
		{"one of a server that was killed", false, nil, ErrSound},
		{"a newer one", true, func(b []byte) []byte { binary.BigEndian.PutUint32(b[60:], 99); return b }, sqlitefile.ErrNewerSchema},
		{"another program's", true, func(b []byte) []byte { copy(b[68:], "else"); return b }, sqlitefile.ErrForeign},
		{"all zero", true, func(b []byte) []byte { clear(b); return b }, sqlitefile.ErrCorrupt},
		{"all zero but for its header", true, func(b []byte) []byte { clear(b[100:]); return b }, sqlitefile.ErrCorrupt},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := enginetest.Written(t, c.clean)
			if c.change != nil {
				damage(t, dir, datastore.EngineFile, c.change)
			}
			before := fmt.Sprint(enginetest.Glob(t, dir, "*"))
			want, _ := os.ReadFile(filepath.Join(dir, datastore.EngineFile))
			lock, err := directory.Acquire(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Close()
			if _, err := Salvage(t.Context(), lock, nil); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if got, _ := os.ReadFile(filepath.Join(dir, datastore.EngineFile)); !bytes.Equal(got, want) {
				t.Error("the database was changed")
			}
			if after := fmt.Sprint(enginetest.Glob(t, dir, "*")); after != before {
				t.Errorf("files: %s, before %s", after, before)
			}
		})
	}
}
