package storage

import (
	"maps"
	"testing"

	"github.com/karve-k8s/karve/datastore"
)

// The record of what servers share is there before the first objects. Any other key prevents them.
func TestFirstObjectsOfAStore(t *testing.T) {
	const prefix = "/registry/"
	for _, tc := range []struct {
		key  string
		want bool // that the first objects are written
	}{
		{prefix + ClusterRecord, true}, {"/other/" + ClusterRecord, true},
		{prefix + ClusterRecord + "s", false}, {prefix + "a", false}, {prefix + "z", false}, {prefix + "karve/kubernetes-version", false},
	} {
		engine, err := datastore.OpenEngine(nil, datastore.Options{Durability: datastore.Memory})
		if err != nil {
			t.Fatal(err)
		}
		defer engine.Close()
		if _, err := engine.Put(t.Context(), datastore.PutRequest{Key: tc.key}); err != nil {
			t.Fatal(err)
		}
		store := engineStore{engine, ""}
		if empty, err := store.Empty(t.Context(), prefix); err != nil || empty != tc.want {
			t.Errorf("%s: empty is %v, %v, want %v", tc.key, empty, err, tc.want)
		}
		if err := store.CreateAll(t.Context(), prefix, maps.All(map[string][]byte{prefix + "first": nil})); err != nil {
			t.Fatal(err)
		}
		if got, err := engine.Range(t.Context(), datastore.RangeRequest{Key: prefix + "first"}); err != nil || (got.Count == 1) != tc.want {
			t.Errorf("%s: got %d objects, %v, want some: %v", tc.key, got.Count, err, tc.want)
		}
	}
}
