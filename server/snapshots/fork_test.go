package snapshots

import (
	"testing"

	"github.com/karve-k8s/karve/datastore"
)

// A fork starts without what the original's servers wrote about themselves. Upstream's compactor watches its
// key from the newest revision on, that one included, and logs an error if what it sees there is no number.
func TestAForkStartsWithoutServers(t *testing.T) {
	t.Parallel()
	open := func(contents *datastore.Dump) *datastore.Engine {
		engine, err := datastore.OpenEngine(nil, datastore.Options{Durability: datastore.Memory, Initial: contents})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { engine.Close() })
		return engine
	}
	put := func(engine *datastore.Engine, key, value string) {
		t.Helper()
		if _, err := engine.Put(t.Context(), datastore.PutRequest{Key: key, Value: []byte(value)}); err != nil {
			t.Fatal(err)
		}
	}
	original := open(nil)
	for _, key := range []string{"/registry/configmaps/default/a", "/registry/masterleases/192.0.2.1", "/registry/leases/kube-system/apiserver-a", "compact_rev_key_apiserver", "compact_rev_key"} {
		put(original, key, "1")
	}
	contents, err := original.Dump(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := contents.Continue(ofServers, 1); err != nil {
		t.Fatal(err)
	}
	contents.Each(func(key string, _ []byte) bool {
		if key != "/registry/configmaps/default/a" {
			t.Errorf("the fork has the key %s", key)
		}
		return true
	})
	fork := open(contents)
	watcher, err := fork.Watch(datastore.WatchRequest{Key: "compact_rev_key", StartRevision: fork.Revision()})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	put(fork, "compact_rev_key", "5")
	seen, err := watcher.Next(t.Context())
	if err != nil || len(seen.Events) != 1 || string(seen.Events[0].KV.Value) != "5" {
		t.Errorf("the compactor sees %+v, %v, want what it has written", seen, err)
	}
}
