package marker

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/karve-k8s/karve/datastore"
	datadir "github.com/karve-k8s/karve/datastore/directory"
)

// On a full disk, there is neither a marker nor an empty file, and the next start creates it.
func TestMarkOnFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("a small tmpfs cannot be mounted here (needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	ballast := filepath.Join(dir, datastore.EngineFile+".ballast")
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "certs"), 0o700), os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	// The disk has room for the header of the database, and no more.
	header := make([]byte, 4096)
	copy(header[68:], "Karv")
	if err := os.WriteFile(filepath.Join(dir, datastore.EngineFile), header, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ballast, make([]byte, 128<<10), 0o600); !datadir.IsFull(err) {
		t.Fatalf("fill the disk: %v", err)
	}
	if err := Mark(dir); !MayStayUnmarked(err) {
		t.Errorf("got %v, want an error despite which the server starts", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, File)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty mark: %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := Mark(dir); err != nil {
		t.Error(err)
	}
	if content, err := os.ReadFile(filepath.Join(dir, File)); err != nil || string(content) != markText {
		t.Errorf("the mark with room: %q, %v", content, err)
	}
}
