package datastore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/karve-k8s/karve/datastore/directory"
)

func TestFilesAreForTheOwnerOnly(t *testing.T) {
	// The name has characters with a meaning in URLs and globs.
	name := "a b?c#d%20e&f"
	dir := filepath.Join(t.TempDir(), name)
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	e, err := OpenEngine(lock, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if _, err := e.Put(t.Context(), PutRequest{Key: "a", Value: []byte("secret")}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"": 0o700, EngineFile: 0o600, EngineFile + "-wal": 0o600,
		EngineFile + ".ballast": 0o600, "lock": 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%q: mode %o, want %o", name, info.Mode().Perm(), want)
		}
	}
}
