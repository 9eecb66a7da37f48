// Package enginetest has what the tests of the rooms around the engine share: databases to
// work on, and short forms of the engine's calls. Only tests import it.
package enginetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
)

// Open opens an engine in dir, or in a new directory, and closes it with the test. There is no
// ballast unless opts ask for some.
func Open(t testing.TB, dir string, opts datastore.Options) *datastore.Engine {
	t.Helper()
	e, lock := OpenLocked(t, dir, opts)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		lock.Close()
	})
	return e
}

// OpenLocked is [Open] for a test that closes the engine and the lock itself.
func OpenLocked(t testing.TB, dir string, opts datastore.Options) (*datastore.Engine, *directory.Lock) {
	t.Helper()
	if opts.BallastBytes == 0 {
		opts.BallastBytes = -1
	}
	if dir == "" {
		dir = t.TempDir()
	}
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	e, err := datastore.OpenEngine(lock, opts)
	if err != nil {
		lock.Close()
		t.Fatal(err)
	}
	return e, lock
}

// TryOpen returns the error of a start and a stop.
func TryOpen(dir string) error {
	lock, err := directory.Acquire(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	e, err := datastore.OpenEngine(lock, datastore.Options{BallastBytes: -1})
	if err != nil {
		return err
	}
	return e.Close()
}

// Put sets a key and returns the revision.
func Put(t testing.TB, e *datastore.Engine, key, value string) int64 {
	t.Helper()
	resp, err := e.Put(t.Context(), datastore.PutRequest{Key: key, Value: []byte(value)})
	if err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
	return resp.Revision
}

// Get is a key as of a revision (0: now), or nil.
func Get(t testing.TB, e *datastore.Engine, key string, revision int64) *datastore.KeyValue {
	t.Helper()
	resp, err := e.Range(t.Context(), datastore.RangeRequest{Key: key, Revision: revision})
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	if len(resp.KVs) == 0 {
		return nil
	}
	return &resp.KVs[0]
}

// WantValue fails the test unless a key has that value now.
func WantValue(t testing.TB, e *datastore.Engine, key, want string) {
	t.Helper()
	if kv := Get(t, e, key, 0); kv == nil || string(kv.Value) != want {
		t.Errorf("%s: got %v, want value %q", key, kv, want)
	}
}

// Crash closes the engine and leaves the files as a kill would: no mark of a clean stop, and the
// WAL in place. Nobody may be writing.
func Crash(t testing.TB, e *datastore.Engine) {
	t.Helper()
	saved := map[string][]byte{}
	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(e.Path() + suffix)
		if err != nil {
			t.Fatal(err)
		}
		saved[suffix] = b
	}
	e.Close()
	for suffix, b := range saved {
		if err := os.WriteFile(e.Path()+suffix, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Written makes a store of 100 keys in 300 revisions and returns its directory. Unless clean, it
// is left as a kill leaves it.
func Written(t testing.TB, clean bool) string {
	t.Helper()
	dir := t.TempDir()
	e, lock := OpenLocked(t, dir, datastore.Options{})
	defer lock.Close()
	for i := range 300 {
		Put(t, e, fmt.Sprintf("/k/%03d", i%100), strings.Repeat(fmt.Sprint(i), 100))
	}
	if !clean {
		Crash(t, e)
	} else if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Glob are the files in a directory whose names match a pattern.
func Glob(t testing.TB, dir, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	return names
}
