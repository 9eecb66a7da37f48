package snapshots

import (
	"strconv"
	"testing"

	"github.com/karve-k8s/karve/datastore"
)

// Upstream's compactor watches its key from the newest revision on, that one included, and logs an error if what it
// sees there is no number. In a fork, the newest revision may be that of its preparation.
func TestAForksCompactorSeesNumbers(t *testing.T) {
	t.Parallel()
	engine, err := datastore.OpenEngine(nil, datastore.Options{Durability: datastore.Memory})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	put := func(key, value string) {
		t.Helper()
		if _, err := engine.Put(t.Context(), datastore.PutRequest{Key: key, Value: []byte(value)}); err != nil {
			t.Fatal(err)
		}
	}
	count := func(key string) int64 {
		t.Helper()
		got, err := engine.Range(t.Context(), datastore.RangeRequest{Key: key, End: datastore.PrefixEnd(key), CountOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		return got.Count
	}
	put("/registry/masterleases/192.0.2.1", "a former server")
	put(compactKey, "1")
	put(compactKey+"_apiserver", "kine's")
	if err := (Fork{from: "a snapshot", inMemory: true}).Prepare(t.Context(), engine); err != nil {
		t.Fatal(err)
	}
	if former, keys := count("/registry/masterleases/"), count(compactKey); former != 0 || keys != 1 {
		t.Errorf("the fork has %d addresses of former servers and %d keys of compactors, want none and upstream's", former, keys)
	}
	watcher, err := engine.Watch(datastore.WatchRequest{Key: compactKey, StartRevision: engine.Revision()})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	put(compactKey, "5")
	for last := ""; last != "5"; {
		seen, err := watcher.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, event := range seen.Events {
			last = string(event.KV.Value)
			if _, err := strconv.ParseInt(last, 10, 64); err != nil {
				t.Errorf("the compactor sees %+v: %v", event, err)
			}
		}
	}
}
