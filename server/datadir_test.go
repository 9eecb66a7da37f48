package server_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/marker"
)

// karve install refuses a directory that has a file of any other name, because it may not be
// Karve's.
func TestDataDirHasOwnNamesOnly(t *testing.T) {
	dir, err := os.MkdirTemp("", "karve-names-") // short: there are sockets in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	want := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
				t.Error(err)
			}
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !marker.OwnName(e.Name()) {
				t.Errorf("%s is not in the list of names", e.Name())
			}
		}
	}
	c, err := launch(dir, func(c *server.Config) {
		c.WriteKubeconfig = filepath.Join(t.TempDir(), "copy")
		c.SSHUser = "nodes"
		c.NoControllers, c.DisableScheduler = true, true // a process can have those of only one cluster
	})
	if err != nil {
		t.Fatal(err)
	}
	want("karve-data", "mvcc.db", "ssh", "admin.kubeconfig", "admin.kubeconfig.copy")
	if err := c.stop(); err != nil {
		t.Fatal(err)
	}
	want("karve-data", "mvcc.db")
}
