package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/server"
)

// The datastore in a directory of its own keeps the state there and nothing in
// the data directory, and nobody else may have it.
func TestDatastoreInAnotherDirectory(t *testing.T) {
	elsewhere := t.TempDir()
	c := start(t, func(c *server.Config) {
		c.DatastoreEndpoint = "sqlite://" + elsewhere + "?durability=relaxed&cache=8Mi"
		c.NoControllers, c.DisableScheduler = true, true
	})
	if _, err := c.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(elsewhere, datastore.EngineFile)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(c.dir, datastore.EngineFile)); err == nil {
		t.Errorf("%s is in the data directory too", datastore.EngineFile)
	}
	if _, err := launch(t.TempDir(), func(c *server.Config) { c.DatastoreEndpoint = "sqlite://" + elsewhere }); err == nil || !strings.Contains(err.Error(), "--datastore-endpoint: ") {
		t.Errorf("a second server on it: %v, want --datastore-endpoint refused", err)
	}
}

func TestDatastoreInMemory(t *testing.T) {
	c := start(t, func(c *server.Config) {
		c.DatastoreEndpoint = "memory://"
		c.NoControllers, c.DisableScheduler = true, true
	})
	if _, err := c.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if files, _ := filepath.Glob(filepath.Join(c.dir, "mvcc.db*")); len(files) > 0 {
		t.Errorf("%v were made", files)
	}
}
