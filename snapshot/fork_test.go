package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/kineimport"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/snapshot"
)

// target is where a fork is made; it does not get keys below /servers/.
func target(dataDir, storeDir string) snapshot.Target {
	return snapshot.Target{DataDir: dataDir, StoreDir: storeDir, Drop: func(key string) bool { return strings.HasPrefix(key, "/servers/") }}
}

// A killed fork leaves a mark, and the next one finishes it, whatever files were there.
func TestHalfAFork(t *testing.T) {
	file := made(t, cluster(t))
	names := []string{snapshot.FileName, "certs/ca.crt", "certs/ca.key", datastore.EngineFile}
	for i := range len(names) + 1 {
		dir := half(t, file, names[:i]...)
		if err := snapshot.Unfinished(dir); !errors.Is(err, snapshot.ErrHalf) {
			t.Errorf("%d: %v, want %v", i, err, snapshot.ErrHalf)
		}
		if _, err := snapshot.Fork(t.Context(), file, target(dir, dir)); err != nil {
			t.Fatal(err)
		}
		wantFork(t, dir, dir)
		if err := snapshot.Unfinished(dir); err != nil {
			t.Errorf("%d: after it %v", i, err)
		}
	}
	// It goes on with its own snapshot: the source may be gone.
	dir, other, gone := half(t, file, names[:1]...), half(t, file), file+" is gone"
	if err := os.Rename(file, gone); err != nil {
		t.Fatal(err)
	}
	if _, err := snapshot.Fork(t.Context(), file, target(dir, dir)); err != nil {
		t.Error(err)
	}
	wantFork(t, dir, dir)
	if _, err := snapshot.Fork(t.Context(), gone, target(other, other)); !errors.Is(err, snapshot.ErrHalf) || !strings.Contains(err.Error(), file) {
		t.Errorf("of another source: %v, want %v and the source", err, snapshot.ErrHalf)
	}
	// If the fork cannot be completed, the mark stays.
	damaged := filepath.Join(t.TempDir(), "damaged")
	text, err := os.ReadFile(gone)
	if err == nil {
		err = os.WriteFile(damaged, text[:len(text)-8192], 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if _, err := snapshot.Fork(t.Context(), damaged, target(dir, dir)); !errors.Is(err, snapshot.ErrNone) {
		t.Errorf("half a snapshot: %v, want %v", err, snapshot.ErrNone)
	}
	if err := snapshot.Unfinished(dir); !errors.Is(err, snapshot.ErrHalf) {
		t.Errorf("after it: %v, want %v", err, snapshot.ErrHalf)
	}
}

// half returns a directory with the mark of a fork of file, and those of its files.
func half(t *testing.T, file string, names ...string) string {
	t.Helper()
	whole, dir := t.TempDir(), t.TempDir()
	if _, err := snapshot.Fork(t.Context(), file, target(whole, whole)); err != nil {
		t.Fatal(err)
	}
	var id int64
	if err := sqlitefile.View(filepath.Join(whole, datastore.EngineFile), func(c *sqlitefile.Connection) error {
		metas, err := c.Metas()
		id = metas["fork"]
		return err
	}); err != nil || id == 0 {
		t.Fatalf("the database of a fork has the id %d: %v", id, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "fork-unfinished"), fmt.Appendf(nil, `{"source":%q,"id":%d}`, file, id), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		text, err := os.ReadFile(filepath.Join(whole, name))
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, text, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Retention tells a fork from its original by a number that a restored backup of either keeps.
func TestForkOf(t *testing.T) {
	of := func(dir string) int64 {
		t.Helper()
		id, err := snapshot.ForkOf(t.Context(), sqlitefile.ClosedFile(filepath.Join(dir, datastore.EngineFile)))
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	restoredFrom := func(file string) string {
		t.Helper()
		dir := t.TempDir()
		if err := restored(t.Context(), file, dir); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	original := made(t, cluster(t))
	fork := t.TempDir()
	if _, err := snapshot.Fork(t.Context(), original, target(fork, fork)); err != nil {
		t.Fatal(err)
	}
	id, backup := of(fork), filepath.Join(t.TempDir(), "backup")
	if _, err := take(t, snapshot.Source{DataDir: fork, StoreDir: fork}, backup); err != nil {
		t.Fatal(err)
	}
	if again := of(restoredFrom(backup)); id == 0 || again != id {
		t.Errorf("the fork has %d, and restored %d", id, again)
	}
	if again := of(restoredFrom(original)); again != 0 {
		t.Errorf("the original, restored, has %d", again)
	}
	err := snapshot.WithFile(backup, func(s *snapshot.Snapshot) error {
		if s.Fork != id {
			t.Errorf("a backup of the fork has %d, want %d", s.Fork, id)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A fork that finishes another one changes no file that this has not made, whichever directory of
// the datastore the start names.
func TestForkLeavesForeignFiles(t *testing.T) {
	file := made(t, cluster(t))
	forked := t.TempDir() // of the same snapshot, but not by the fork that was killed
	if _, err := snapshot.Fork(t.Context(), file, target(forked, forked)); err != nil {
		t.Fatal(err)
	}
	database := func(dir string) []byte {
		text, err := os.ReadFile(filepath.Join(dir, datastore.EngineFile))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for what, foreign := range map[string]struct {
		name    string
		content []byte
	}{
		"a k3s":                            {kineimport.FileName, []byte("a k3s")},
		"another cluster":                  {datastore.EngineFile, database(cluster(t))},
		"another fork of the same cluster": {datastore.EngineFile, database(forked)},
		"a log":                            {datastore.EngineFile + "-wal", []byte("a log")},
		"a key":                            {"certs/ca.key", []byte("of others")},
	} {
		for _, elsewhere := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, elsewhere: %v", what, elsewhere), func(t *testing.T) {
				name, content := foreign.name, foreign.content
				dir := half(t, file, snapshot.FileName)
				store, foreign := dir, filepath.Join(dir, name)
				if elsewhere {
					store = t.TempDir()
					if !strings.HasPrefix(name, "certs/") {
						foreign = filepath.Join(store, name)
					}
				}
				if err := errors.Join(os.MkdirAll(filepath.Dir(foreign), 0o700), os.WriteFile(foreign, content, 0o600)); err != nil {
					t.Fatal(err)
				}
				before, beforeThere := listing(t, dir), listing(t, store)
				if _, err := snapshot.Fork(t.Context(), file, target(dir, store)); !errors.Is(err, snapshot.ErrOccupied) || !strings.Contains(err.Error(), foreign) {
					t.Errorf("got %v, want %v and %s", err, snapshot.ErrOccupied, foreign)
				}
				if after, there := listing(t, dir), listing(t, store); after != before || there != beforeThere {
					t.Errorf("it left\n%s%s, before it was\n%s%s", after, there, before, beforeThere)
				}
			})
		}
	}
}

// A fork has higher revisions than clients of its original may have seen, and no key that the original's
// servers wrote about themselves. The original runs, and may have reserved revisions.
func TestForkGoesOnAboveItsOriginal(t *testing.T) {
	for _, mode := range []datastore.Durability{datastore.Full, datastore.Relaxed} {
		t.Run(mode.String(), func(t *testing.T) {
			source := cluster(t)
			lock, err := directory.Acquire(source)
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Close()
			engine, err := datastore.OpenEngine(lock, datastore.Options{Durability: mode, BallastBytes: -1})
			if err != nil {
				t.Fatal(err)
			}
			defer engine.Close()
			for _, value := range []string{"an address", "another one"} {
				if _, err := engine.Put(t.Context(), datastore.PutRequest{Key: "/servers/a", Value: []byte(value)}); err != nil {
					t.Fatal(err)
				}
			}
			file := filepath.Join(t.TempDir(), "file")
			if _, err := take(t, snapshot.Source{DataDir: source, Backup: func(ctx context.Context, to string) (*backup.Result, error) {
				return engine.Backup(ctx, to)
			}}, file); err != nil {
				t.Fatal(err)
			}
			least := backup.Above(engine.Revision())

			dir := t.TempDir()
			if _, err := snapshot.Fork(t.Context(), file, target(dir, dir)); err != nil {
				t.Fatal(err)
			}
			database := filepath.Join(dir, datastore.EngineFile)
			v, err := backup.Verify(t.Context(), sqlitefile.ClosedFile(database), nil)
			if err != nil || !v.OK || v.Revision < least {
				t.Errorf("the fork's database: %+v, %v, want revision %d or more", v, err, least)
			}
			contents, err := datastore.ReadDump(t.Context(), database)
			wantKeys(t, contents, err, "/registry/a")

			dir = t.TempDir()
			if _, err := snapshot.Fork(t.Context(), file, target(dir, "")); err != nil {
				t.Fatal(err)
			}
			for start := range 3 { // each goes on above the last one
				contents, err := snapshot.Contents(t.Context(), target(dir, ""))
				wantKeys(t, contents, err, "/registry/a")
				if got := contents.Revision(); got < least {
					t.Errorf("start %d in memory: revision %d, want %d or more", start, got, least)
				}
				least = contents.Revision() + backup.RevisionMargin
			}
		})
	}
}

func wantKeys(t *testing.T, got *datastore.Dump, err error, want ...string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	got.Each(func(key string, _ []byte) bool {
		keys = append(keys, key)
		return true
	})
	if !slices.Equal(keys, want) {
		t.Errorf("the fork has the keys %q, want %q", keys, want)
	}
}

// A service starts with --fork-from again and again: the fork is made once.
func TestForkAgain(t *testing.T) {
	source := cluster(t)
	file := made(t, source)
	forked := func(t *testing.T, from string) string {
		dir := t.TempDir()
		if made, err := snapshot.Fork(t.Context(), from, target(dir, dir)); err != nil || made.Already {
			t.Fatalf("%+v, %v", made, err)
		}
		put(t, dir, "/registry/b", "written since")
		return dir
	}
	copied := func(t *testing.T, from, to string) string {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return to
	}
	for name, test := range map[string]struct {
		from  string
		then  func(t *testing.T, dir, from string) (again string)
		other bool
	}{
		"the same file":      {from: file},
		"the same directory": {from: source},
		"the file has moved": {from: file, other: true, then: func(t *testing.T, _, from string) string {
			return copied(t, from, filepath.Join(t.TempDir(), "moved"))
		}},
		"another directory": {from: file, other: true, then: func(t *testing.T, _, _ string) string { return cluster(t) }},
		"the file is gone": {from: file, then: func(t *testing.T, _, from string) string {
			if err := os.Remove(from); err != nil {
				t.Fatal(err)
			}
			return from
		}},
		"by a release without a record": {from: file, then: func(t *testing.T, dir, from string) string {
			if err := os.Remove(filepath.Join(dir, "fork-of")); err != nil {
				t.Fatal(err)
			}
			return from
		}},
		"a cluster that is no fork": {from: file, other: true, then: func(t *testing.T, dir, from string) string {
			if err := errors.Join(os.Remove(filepath.Join(dir, "fork-of")), os.Remove(filepath.Join(dir, snapshot.FileName))); err != nil {
				t.Fatal(err)
			}
			return from
		}},
	} {
		t.Run(name, func(t *testing.T) {
			from := test.from
			if from == file {
				from = copied(t, file, filepath.Join(t.TempDir(), "file"))
			}
			dir := forked(t, from)
			if test.then != nil {
				from = test.then(t, dir, from)
			}
			before := listing(t, dir)
			made, err := snapshot.Fork(t.Context(), from, target(dir, dir))
			if test.other {
				if !errors.Is(err, snapshot.ErrOccupied) || !strings.Contains(err.Error(), "a data directory of its own") {
					t.Errorf("got %v, want %v and the remedy", err, snapshot.ErrOccupied)
				}
			} else if err != nil || !made.Already {
				t.Errorf("got %+v, %v, want that it is a fork already", made, err)
			}
			if after := listing(t, dir); after != before {
				t.Errorf("it left\n%s, before it was\n%s", after, before)
			}
		})
	}
}

// A mark comes back because the disk lost a confirmed removal. A fork with its last file is
// complete all the same.
func TestMarkThatCameBack(t *testing.T) {
	file, dir := made(t, cluster(t)), t.TempDir()
	if _, err := snapshot.Fork(t.Context(), file, target(dir, dir)); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "/registry/b", "2")
	before := listing(t, dir)
	if err := os.WriteFile(filepath.Join(dir, "fork-unfinished"), fmt.Appendf(nil, `{"source":%q,"id":1}`, file), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := snapshot.Unfinished(dir); err != nil {
		t.Errorf("a start: %v", err)
	}
	if made, err := snapshot.Fork(t.Context(), file, target(dir, dir)); err != nil || !made.Already {
		t.Errorf("the fork again: got %+v, %v, want that it is a fork already", made, err)
	}
	if after := listing(t, dir); after != before {
		t.Errorf("it left\n%s, before it was\n%s", after, before)
	}
}

// The remedy for an unfinished fork names the source, and tells nobody to remove a
// directory.
func TestHalfAForkNamesItsSource(t *testing.T) {
	for _, text := range []string{"/backups/monday\n", `{"source":"/backups/monday","id":1}`} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "fork-unfinished"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := snapshot.Unfinished(dir)
		if err == nil || !strings.Contains(err.Error(), "--fork-from /backups/monday,") || strings.Contains(err.Error(), "remove") {
			t.Errorf("got %v, want the source, and nothing about removing", err)
		}
	}
}
