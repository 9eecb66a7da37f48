package endtoend

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/datastore"
)

// A data directory of a newer release is refused by every command that would
// write to it, and nothing in it is touched: neither the datastore nor the
// certificates.
func TestDowngradeIsRefusedUntouched(t *testing.T) {
	long(t)
	parallel(t)
	dir := t.TempDir()
	start(t, dir, bare...).stop()
	path := filepath.Join(dir, datastore.EngineFile)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{99}, 63); err != nil { // SQLite's user_version
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	before := allFiles(t, dir)
	if len(before) < 10 {
		t.Fatalf("got %d files, want a datastore and certificates", len(before))
	}
	want := path + " has schema 99, this release knows 1 (use the newer release, or restore a backup of this one)"
	backup := filepath.Join(t.TempDir(), "backup")
	for _, args := range [][]string{
		append([]string{"server", "--data-dir", dir}, bare...),
		{"datastore", "backup", "--data-dir", dir, backup},
		{"datastore", "stats", "--data-dir", dir},
		{"status", "--data-dir", dir},
	} {
		wantProblems(t, finish(t, command(t, "karve", args...)), want)
		if after := allFiles(t, dir); !maps.Equal(before, after) {
			for name := range before {
				if before[name] != after[name] {
					t.Errorf("karve %s: %s was changed", args[0], name)
				}
			}
			for name := range after {
				if _, was := before[name]; !was {
					t.Errorf("karve %s: %s was made", args[0], name)
				}
			}
		}
	}
	if options.Exists(backup) {
		t.Errorf("%s was made", backup)
	}
}

// allFiles are the contents of a directory, by name, but for the lock, in which the
// next one's pid is, and for the kubeconfig, which is there while a server is ready.
func allFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || entry.Name() == "lock" || entry.Name() == "admin.kubeconfig" {
			return err
		}
		text, err := os.ReadFile(path)
		files[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
