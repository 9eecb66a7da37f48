package etcdapi

import (
	"fmt"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/karve-k8s/karve/datastore"
)

// The engine keeps the states of a few lists. In others, each chunk that counts looks at all keys
// that are left.
func TestOnlyTheLastChunkCounts(t *testing.T) {
	engine, err := datastore.OpenEngine(nil, datastore.Options{Durability: datastore.Memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close() })
	put := func(key string) {
		t.Helper()
		if _, err := engine.Put(t.Context(), datastore.PutRequest{Key: key}); err != nil {
			t.Fatal(err)
		}
	}
	const all = 1000
	for i := range all {
		put(fmt.Sprintf("/a/%04d", i))
	}
	for _, limit := range []int64{0, 1, 10, 300, all - 1, all, all + 1} {
		request := &pb.RangeRequest{Key: []byte("/a/"), RangeEnd: []byte("/a0"), Limit: limit, Revision: all + 1}
		c, err := NewChunks(engine, request, firstChunk)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for c.More() {
			for range 9 { // lists that begin meanwhile
				put("/b")
				if _, err := engine.Range(t.Context(), datastore.RangeRequest{Key: "/a/", End: "/a0", Limit: 1}); err != nil {
					t.Fatal(err)
				}
			}
			resp, err := c.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, kv := range resp.Kvs {
				got = append(got, string(kv.Key))
			}
			if counts := !c.req.NoCount; limit > 0 && limit < all && counts == c.More() || limit == 0 && counts {
				t.Errorf("limit %d: the engine counts %v in a chunk after which there are more: %v", limit, counts, c.More())
			}
			if more := limit > 0 && limit < all; !c.More() && (resp.Count != all || resp.More != more) {
				t.Errorf("limit %d: count %d, more %v, want %d, %v", limit, resp.Count, resp.More, all, more)
			}
		}
		want := all
		if limit > 0 {
			want = min(int(limit), all)
		}
		if len(got) != want {
			t.Fatalf("limit %d: %d keys, want %d", limit, len(got), want)
		}
		for i, key := range got {
			if key != fmt.Sprintf("/a/%04d", i) {
				t.Fatalf("limit %d: key %d is %s", limit, i, key)
			}
		}
	}
}
