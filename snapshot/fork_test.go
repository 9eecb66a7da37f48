package snapshot_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/snapshot"
)

// A killed fork leaves a mark, and the next one completes it, whatever files were there.
func TestHalfAFork(t *testing.T) {
	file := made(t, cluster(t))
	whole := t.TempDir()
	if _, err := snapshot.Fork(t.Context(), file, whole, whole); err != nil {
		t.Fatal(err)
	}
	for i, left := range [][]string{{}, {snapshot.FileName}, {snapshot.FileName, "certs/ca.crt"}, {snapshot.FileName, "certs/ca.crt", "certs/ca.key", datastore.EngineFile}} {
		dir := t.TempDir()
		for _, name := range append(left, "fork-unfinished") {
			text, err := os.ReadFile(filepath.Join(whole, name))
			if err != nil && name != "fork-unfinished" {
				t.Fatal(err)
			}
			path := filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, text[:len(text)/2], 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if err := snapshot.Unfinished(dir, dir); !errors.Is(err, snapshot.ErrHalf) {
			t.Errorf("%d: %v, want %v", i, err, snapshot.ErrHalf)
		}
		if _, err := snapshot.Fork(t.Context(), file, dir, dir); err != nil {
			t.Fatal(err)
		}
		wantCluster(t, dir, dir)
	}
	// If the fork cannot be completed, the mark stays.
	damaged := filepath.Join(t.TempDir(), "damaged")
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(damaged, text[:len(text)-8192], 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := snapshot.Fork(t.Context(), damaged, dir, dir); !errors.Is(err, snapshot.ErrNone) {
		t.Errorf("half a snapshot: %v, want %v", err, snapshot.ErrNone)
	}
	if err := snapshot.Unfinished(dir, dir); !errors.Is(err, snapshot.ErrHalf) {
		t.Errorf("after it: %v, want %v", err, snapshot.ErrHalf)
	}
}

// A service starts with --fork-from again and again: the fork is made once.
func TestForkAgain(t *testing.T) {
	source := cluster(t)
	file := made(t, source)
	forked := func(t *testing.T, from string) string {
		dir := t.TempDir()
		if made, err := snapshot.Fork(t.Context(), from, dir, dir); err != nil || made.Already {
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
	// changed returns a snapshot of the same cluster, or of another, with one key more.
	changed := func(t *testing.T, key string) string {
		other := cluster(t)
		put(t, other, "/registry/c", "newer")
		if err := os.WriteFile(filepath.Join(other, "certs", "service-account.key"), []byte(key), 0o600); err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(t.TempDir(), "changed")
		if _, err := snapshot.Make(t.Context(), snapshot.Source{DataDir: other, StoreDir: other}, to, false); err != nil {
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
		"the file has moved": {from: file, then: func(t *testing.T, _, from string) string {
			return copied(t, from, filepath.Join(t.TempDir(), "moved"))
		}},
		"the file is a newer snapshot": {from: file, then: func(t *testing.T, _, from string) string {
			return copied(t, changed(t, "accounts"), from)
		}},
		"the file is of another cluster": {from: file, other: true, then: func(t *testing.T, _, from string) string {
			return copied(t, changed(t, "of others"), from)
		}},
		"another file of the same cluster": {from: file, other: true, then: func(t *testing.T, _, _ string) string {
			return changed(t, "accounts")
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
			made, err := snapshot.Fork(t.Context(), from, dir, dir)
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

// A mark comes back because the disk lost a confirmed removal. It must not make anyone
// destroy the cluster that has been used since.
func TestMarkThatCameBack(t *testing.T) {
	file := made(t, cluster(t))
	for name, use := range map[string]func(t *testing.T, dir string){
		"closed": func(t *testing.T, dir string) { put(t, dir, "/registry/b", "2") },
		"killed": func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, datastore.EngineFile+"-wal"), []byte("a log"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if _, err := snapshot.Fork(t.Context(), file, dir, dir); err != nil {
				t.Fatal(err)
			}
			use(t, dir)
			mark := filepath.Join(dir, "fork-unfinished")
			if err := os.WriteFile(mark, []byte(file+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			before := listing(t, dir)
			_, again := snapshot.Fork(t.Context(), file, dir, dir)
			for what, err := range map[string]error{"a start": snapshot.Unfinished(dir, dir), "the fork again": again} {
				if !errors.Is(err, snapshot.ErrUsed) || !strings.Contains(err.Error(), "Remove the file "+mark+", and nothing else") {
					t.Errorf("%s: got %v, want %v and the one file to remove", what, err, snapshot.ErrUsed)
				}
			}
			if after := listing(t, dir); after != before {
				t.Errorf("it left\n%s, before it was\n%s", after, before)
			}
		})
	}
}

// The remedy for an unfinished fork names the source, and tells nobody to remove a
// directory.
func TestHalfAForkNamesItsSource(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "fork-unfinished"), []byte("/backups/monday\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := snapshot.Unfinished(dir, dir)
	if err == nil || !strings.Contains(err.Error(), "--fork-from /backups/monday") || strings.Contains(err.Error(), "remove") {
		t.Errorf("got %v, want the source, and nothing about removing", err)
	}
}
