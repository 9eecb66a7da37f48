package snapshots

import (
	"bytes"
	"context"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/snapshot"
)

// A snapshot of a cluster at rest has what controllers write when they start. They may write it
// after a server says that it is ready.
func TestSnapshotAwaitsControllers(t *testing.T) {
	engine, err := datastore.OpenEngine(nil, datastore.Options{Durability: datastore.Memory})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "certs"), 0o700); err != nil {
		t.Fatal(err)
	}
	c := New(Options{DataDir: dir})
	c.Connection = Connection{
		Engine: engine, Ready: func() bool { return true },
		Begun: func(ctx context.Context) error {
			_, err := engine.Put(ctx, datastore.PutRequest{Key: "/registry/late", Value: []byte("1")})
			return err
		},
	}
	for _, test := range []struct {
		query string
		want  int64
	}{{"", 0}, {"?" + control.Settle + "=true", 1}} {
		query, want := test.query, test.want
		w := httptest.NewRecorder()
		if err := c.snapshot(w, httptest.NewRequestWithContext(t.Context(), "GET", control.SnapshotPath+query, nil)); err != nil {
			t.Fatal(err)
		}
		s, err := snapshot.Read(bytes.NewReader(w.Body.Bytes()))
		if err != nil || s.Keys != want {
			t.Errorf("with %q: %+v, %v, want %d keys", query, s, err, want)
		}
	}
}
