package server_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/marker"
)

// karve install refuses a directory that has a file of any other name, because it may not be
// Karve's.
func TestDataDirHasOwnNamesOnly(t *testing.T) {
	dir, err := os.MkdirTemp("", "karve-names-") // short: there are sockets in it
	fatal(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	want := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
				t.Error(err)
			}
		}
		entries, err := os.ReadDir(dir)
		fatal(t, err)
		for _, e := range entries {
			if !marker.OwnName(e.Name()) {
				t.Errorf("%s is not in the list of names", e.Name())
			}
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	fatal(t, os.Symlink(dir, link))
	c := up(t, link, func(c *server.Config) {
		c.WriteKubeconfig = filepath.Join(t.TempDir(), "copy")
		c.SSHUser = "nodes"
		c.NoControllers, c.DisableScheduler = true, true // a process can have those of only one cluster
	})
	want("karve-data", "mvcc.db", "ssh", "admin.kubeconfig", "admin.kubeconfig.copy")

	// The link may lead elsewhere now. A server whose directory itself is replaced stops, and leaves the other one alone.
	fatal(t, errors.Join(os.Remove(link), os.Symlink(t.TempDir(), link)))
	client := control.New(dir)
	defer client.Close()
	if err := client.Snapshot(t.Context(), io.Discard); err != nil {
		t.Error(err)
	}
	other := dir
	dir += "-first"
	t.Cleanup(func() { os.RemoveAll(other) })
	fatal(t, errors.Join(os.Rename(other, dir), os.Mkdir(other, 0o700), os.WriteFile(filepath.Join(other, "lock"), nil, 0o600)))
	if <-c.done; !errors.Is(c.err, directory.ErrReplaced) {
		t.Errorf("got %v, want ErrReplaced", c.err)
	}
	if entries, err := os.ReadDir(other); err != nil || len(entries) != 1 {
		t.Errorf("in the other directory: %v, %v", entries, err)
	}
	want("karve-data", "mvcc.db")
}
