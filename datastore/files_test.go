package datastore

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/filemode"
)

func TestFilesAreForTheOwnerOnly(t *testing.T) {
	// The name has characters with a meaning in URLs and globs.
	name := "a b?c#d%20e&f"
	if runtime.GOOS == "windows" {
		name = strings.ReplaceAll(name, "?", "") // no name has one there
	}
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
		if !filemode.Is(info, want) {
			t.Errorf("%q: mode %o, want %o", name, info.Mode().Perm(), want)
		}
	}
}
