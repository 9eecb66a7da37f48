package etcdapi

import (
	"fmt"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/karve-k8s/karve/datastore"
)

// BenchmarkEncode measures what the server does for an answer after the engine: translation and
// encoding.
func BenchmarkEncode(b *testing.B) {
	value := make([]byte, 1500)
	kvs := make([]datastore.KeyValue, 500)
	for i := range kvs {
		kvs[i] = datastore.KeyValue{Key: fmt.Sprintf("/registry/pods/default/pod-%05d", i), Value: value, CreateRevision: 1000 + int64(i), ModRevision: 2000 + int64(i), Version: 3}
	}
	c := Codec()
	for _, n := range []int{0, 1, 50, 500} {
		b.Run(fmt.Sprintf("list/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				resp := rangeResponse(&pb.RangeRequest{}, &datastore.RangeResponse{KVs: kvs[:n], Count: int64(n)}, header(5000))
				data, err := c.Marshal(resp)
				if err != nil {
					b.Fatal(err)
				}
				data.Free()
			}
		})
	}
	b.Run("event", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := encode(&datastore.Event{KV: kvs[0]}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("put", func(b *testing.B) {
		b.ReportAllocs()
		data, err := c.Marshal(&pb.PutRequest{Key: []byte(kvs[0].Key), Value: value})
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			var r pb.PutRequest
			if err := c.Unmarshal(data, &r); err != nil || checkSize(&r) != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkSocket measures requests over a socket with etcd's client.
func BenchmarkSocket(b *testing.B) {
	s := serve(b)
	value := string(make([]byte, 1500))
	for i := range 500 {
		s.put(b, fmt.Sprintf("/registry/pods/default/pod-%05d", i), value)
	}
	b.Run("get", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if r, err := s.Client.Get(b.Context(), "/registry/pods/default/pod-00001"); err != nil || len(r.Kvs) != 1 {
				b.Fatal(err)
			}
		}
	})
	b.Run("list", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if r, err := s.Client.Get(b.Context(), "/registry/pods/", clientv3.WithPrefix()); err != nil || len(r.Kvs) != 500 {
				b.Fatal(err)
			}
		}
	})
	b.Run("put", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Client.Put(b.Context(), "/a", value); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkChunks measures a list in chunks: alone, and after other lists have begun meanwhile, more
// than the engine keeps the states of.
func BenchmarkChunks(b *testing.B) {
	engine, err := datastore.OpenEngine(nil, datastore.Options{Durability: datastore.Memory})
	if err != nil {
		b.Fatal(err)
	}
	defer engine.Close()
	put := func(key string) {
		if _, err := engine.Put(b.Context(), datastore.PutRequest{Key: key, Value: make([]byte, 3000)}); err != nil {
			b.Fatal(err)
		}
	}
	const all = 40000
	for i := range all {
		put(fmt.Sprintf("/registry/events/%06d", i))
	}
	request := &pb.RangeRequest{Key: []byte("/registry/events/"), RangeEnd: []byte("/registry/events0")}
	for _, others := range []int{0, 9} {
		b.Run(fmt.Sprintf("others/%d", others), func(b *testing.B) {
			for b.Loop() {
				c, err := NewChunks(engine, request, 500)
				if err != nil {
					b.Fatal(err)
				}
				got := 0
				for first := true; c.More(); first = false {
					resp, err := c.Next(b.Context())
					if err != nil {
						b.Fatal(err)
					}
					got += len(resp.Kvs)
					for range others {
						if !first {
							break
						}
						put("/x")
						if _, err := engine.Range(b.Context(), datastore.RangeRequest{Key: "/registry/", End: "/registry0", Limit: 1}); err != nil {
							b.Fatal(err)
						}
					}
				}
				if got != all {
					b.Fatal(got)
				}
			}
		})
	}
}
