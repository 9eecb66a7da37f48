package server_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/membership"
)

// A datastore in a directory of its own stores its state only there, and no other server may use it. If its disk is not mounted, or its files
// are gone, no empty cluster takes the place of the former one.
func TestDatastoreInAnotherDirectory(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	edit := func(c *server.Config) {
		c.DatastoreEndpoint = "sqlite://" + elsewhere + "?durability=relaxed&cache=8Mi"
		c.NoControllers, c.DisableScheduler = true, true
	}
	c := up(t, dir, edit)
	create(t, c.CoreV1().ConfigMaps("default"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}})
	if _, err := os.Stat(filepath.Join(elsewhere, datastore.EngineFile)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, datastore.EngineFile)); err == nil {
		t.Errorf("%s is in the data directory too", datastore.EngineFile)
	}
	if _, err := launch(t.TempDir(), func(c *server.Config) { c.DatastoreEndpoint = "sqlite://" + elsewhere }); err == nil || !strings.Contains(err.Error(), "--datastore-endpoint: ") {
		t.Errorf("a second server on it: %v, want --datastore-endpoint refused", err)
	}
	c.down(t)

	away := elsewhere + ".away"
	fatal(t, os.Rename(elsewhere, away))
	for range 2 {
		if c, err := launch(dir, edit); err == nil {
			t.Error("a start made a new cluster", c.stop())
		} else if !errors.Is(err, membership.ErrEmpty) {
			t.Errorf("a start: %v, want ErrEmpty", err)
		}
	}
	fatal(t, errors.Join(os.RemoveAll(elsewhere), os.Rename(away, elsewhere)))
	c = up(t, dir, edit)
	if _, err := c.CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	c.down(t)
}

// In mode relaxed, a kubelet's renewal of its lease, under upstream's key, waits for the next
// write. The renewal of another lease and a new lease are written immediately.
func TestNodeLeasesAreWrittenTogether(t *testing.T) {
	c := start(t, func(c *server.Config) {
		c.Durability = "relaxed"
		c.NoControllers, c.DisableScheduler = true, true
	})
	written := func(resourceVersion string) bool {
		t.Helper()
		look, err := sqlitefile.ReadInfo(filepath.Join(c.dir, datastore.EngineFile))
		fatal(t, err)
		revision, err := strconv.ParseInt(resourceVersion, 10, 64)
		fatal(t, err)
		return look.Revision >= revision
	}
	for namespace, want := range map[string]bool{"kube-node-lease": false, "kube-system": true} {
		leases := c.CoordinationV1().Leases(namespace)
		lease, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, metav1.CreateOptions{})
		fatal(t, err)
		if !written(lease.ResourceVersion) {
			t.Errorf("%s: a new lease is not written", namespace)
		}
		// The server's own writes also write a waiting renewal, so it may take several tries
		// until one waits.
		got := !want
		for try := 0; got != want && (try == 0 || !want && try < 20); try++ {
			lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
			if lease, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			got = written(lease.ResourceVersion)
		}
		if got != want {
			t.Errorf("%s: a renewal is written immediately: got %v, want %v", namespace, got, want)
		}
		if seen, err := leases.Get(t.Context(), "one", metav1.GetOptions{}); err != nil || seen.ResourceVersion != lease.ResourceVersion {
			t.Errorf("%s: got %v, %v, want the renewed one", namespace, seen, err)
		}
	}
}
