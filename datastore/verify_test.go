package datastore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadStats(t *testing.T) {
	dir := writtenStore(t, true)
	path := filepath.Join(dir, EngineFile)
	before, _ := os.ReadFile(path)
	s, err := ReadStats(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	live := int64(0)
	for i := 200; i < 300; i++ {
		live += int64(len("/k/000") + 100*len(fmt.Sprint(i)))
	}
	want := FileStats{
		Path: path, SchemaVersion: 1, Revision: 301, Keys: 100, LiveBytes: live, Rows: 300,
		FileBytes: int64(len(before)), FreeBytes: s.FreeBytes, Clean: true,
	}
	if *s != want {
		t.Errorf("got %+v, want %+v", *s, want)
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(before, after) || len(glob(t, dir, "*")) != 2 {
		t.Errorf("the directory was changed: %v", glob(t, dir, "*"))
	}
	if _, err := ReadStats(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v, want fs.ErrNotExist", err)
	}
}

// Damage that the engine refuses, and damage that only shows between rows.
func TestVerifyFindsDamage(t *testing.T) {
	edit := func(query string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if _, err := db.Exec(query); err != nil {
				t.Fatal(err)
			}
		}
	}
	// resum writes a row with a checksum that fits.
	resum := func(at int64, change func(v *version)) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			v := &version{id: rowID(at, 0)}
			c, err := (&disk{path: path}).connect(nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.close()
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			var value []byte
			if err := db.QueryRow(`SELECT key, create_revision, version, lease, value FROM log WHERE id = ?`, v.id).Scan(&v.key, &v.create, &v.version, &v.lease, &value); err != nil {
				t.Fatal(err)
			}
			change(v)
			if _, err := db.Exec(`UPDATE log SET create_revision = ?, version = ?, lease = ?, crc = ? WHERE id = ?`, v.create, v.version, v.lease, v.checksum(value), v.id); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, path string)
		want   string
	}{
		{"value", edit(`UPDATE log SET value = 'x' WHERE id = 250 << 16`), fmt.Sprintf("row %d (revision 250) has a bad checksum", rowID(250, 0))},
		{"row missing", edit(`DELETE FROM log WHERE id = 250 << 16`), "299 rows where the last stop left 300"},
		{"version", resum(250, func(v *version) { v.version = 7 }), "is version 7 after version 2"},
		{"creation", resum(250, func(v *version) { v.create = 400 }), "created in revision 400"},
		{"lease", resum(250, func(v *version) { v.lease = 5 }), `has lease 5, which is not there`},
		{"page", func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt(make([]byte, 4096), 9*4096); err != nil {
				t.Fatal(err)
			}
		}, ""},
		{"log missing", func(t *testing.T, path string) {
			edit(`UPDATE meta SET value = 0 WHERE name = 'clean'`)(t, path)
			os.Remove(path + "-wal")
		}, "its log"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(writtenStore(t, true), EngineFile)
			c.damage(t, path)
			v, err := Verify(t.Context(), path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if v.OK || !strings.Contains(strings.Join(v.Problems, "\n"), c.want) || !errors.Is(v.Err(), ErrCorrupt) {
				t.Errorf("got %+v, want a problem %q", v, c.want)
			}
			if _, err := BackupFile(t.Context(), path, filepath.Join(t.TempDir(), "b"), BackupOptions{}); !errors.Is(err, ErrCorrupt) {
				t.Errorf("backup: %v, want ErrCorrupt", err)
			}
		})
	}
	path := filepath.Join(t.TempDir(), "other.db")
	if err := makeForeign(path); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(t.Context(), path, nil); !errors.Is(err, ErrForeign) {
		t.Errorf("another program's: %v, want ErrForeign", err)
	}
}

// What random operations and compactions leave is sound in the eyes of Verify.
func TestVerifyAcceptsWhatTheEngineWrites(t *testing.T) {
	dir := t.TempDir()
	e := openTest(t, dir, Options{})
	for i := range 400 {
		key := fmt.Sprint("/k/", i*i%17)
		switch {
		case i%7 == 3:
			if _, err := e.Delete(t.Context(), DeleteRequest{Key: "/k/", End: fmt.Sprint("/k/", i%5)}); err != nil {
				t.Fatal(err)
			}
		case i%50 == 49:
			if err := e.Compact(t.Context(), e.Revision()-int64(i%20), i%100 == 99); err != nil {
				t.Fatal(err)
			}
		default:
			put(t, e, key, fmt.Sprint(i))
		}
		if i%25 == 0 || i%50 == 49 {
			if v, err := e.Verify(t.Context(), nil); err != nil || !v.OK || v.Revision != e.Revision() || v.Keys != e.Stats().Keys {
				t.Errorf("after %d: %+v, %v; want %d keys at revision %d", i, v, err, e.Stats().Keys, e.Revision())
			}
		}
	}
}

func TestCompactFile(t *testing.T) {
	dir := t.TempDir()
	e, lock := openLocked(t, dir, Options{})
	defer lock.Close()
	for i := range 1000 {
		put(t, e, "/one", strings.Repeat(fmt.Sprint(i), 1000))
	}
	at := e.Revision()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		c, err := CompactFile(t.Context(), lock)
		if err != nil || c.Revision != at || c.After > 100<<10 {
			t.Errorf("got %+v, %v; want revision %d in a small file", c, err, at)
		}
	}
	path := filepath.Join(dir, EngineFile)
	if v, err := Verify(t.Context(), path, nil); err != nil || !v.OK || v.Rows != 1 {
		t.Errorf("verify: %+v, %v; want 1 row", v, err)
	}
	e, err := OpenEngine(lock, Options{BallastBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	wantValue(t, e, "/one", 0, strings.Repeat("999", 1000))
}

// Readers come at every moment of another process' starts and stops: what they see is
// whole, or they are told that it is in use; and each start waits for them.
func TestReadersDuringStartsAndStops(t *testing.T) {
	dir := writtenStore(t, true)
	path := filepath.Join(dir, EngineFile)
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "KARVE_CRASH_DIR="+dir, "KARVE_CRASH_MODE=restarts-full")
	var said bytes.Buffer
	child.Stdout, child.Stderr = &said, &said
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	var last int64
	reads, refused := 0, 0
	for running := true; running; reads++ {
		select {
		case err := <-ended:
			running = false
			if err != nil {
				t.Fatalf("%v: %s", err, &said)
			}
		default:
		}
		v, err := Verify(t.Context(), path, nil)
		if errors.Is(err, ErrBusy) {
			refused++
			continue
		}
		if err != nil || !v.OK || v.Revision < last {
			t.Fatalf("read %d: %+v, %v; want it sound, at revision %d at least", reads, v, err, last)
		}
		last = v.Revision
		if _, err := BackupFile(t.Context(), path, filepath.Join(t.TempDir(), "b"), BackupOptions{}); err != nil && !errors.Is(err, ErrBusy) {
			t.Fatalf("backup %d: %v", reads, err)
		}
	}
	if want := int64(301 + restarts*30); last != want {
		t.Errorf("revision %d at the end, want %d", last, want)
	}
	t.Logf("%d reads, of which %d met a running engine", reads, refused)
}

// restarts is how often restartingChild starts and stops an engine.
const restarts = 15

func restartingChild(dir string) error {
	for i := range restarts {
		lock, err := LockDir(dir)
		if err != nil {
			return err
		}
		e, err := OpenEngine(lock, Options{BallastBytes: -1})
		if err != nil {
			return err
		}
		for j := range 30 {
			value := []byte(strings.Repeat(fmt.Sprint(i), 500))
			if _, err := e.Put(context.Background(), PutRequest{Key: fmt.Sprint("/k/", j), Value: value}); err != nil {
				return err
			}
		}
		if err := errors.Join(e.Close(), lock.Close()); err != nil {
			return err
		}
	}
	return nil
}
