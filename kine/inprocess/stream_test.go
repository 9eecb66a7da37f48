package inprocess_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/internal/eventually"
)

// whole puts the chunks of a stream together, and checks what the API server relies on
// (k8s.io/apiserver pkg/storage/etcd3, streamChunks).
func whole(stream clientv3.GetStreamChan, err error) (kvs []*mvccpb.KeyValue, last *clientv3.GetResponse, _ error) {
	if err != nil {
		return nil, nil, err
	}
	for r := range stream {
		if err := r.Err(); err != nil {
			return nil, nil, err
		}
		if last != nil {
			return nil, nil, errors.New("a chunk comes after the one with the header")
		}
		kvs = append(kvs, r.Kvs...)
		if r.Header != nil {
			last = (*clientv3.GetResponse)(r.RangeResponse)
		}
	}
	if last == nil {
		return nil, nil, errors.New("no chunk has a header")
	}
	return kvs, last, nil
}

func TestGetStream(t *testing.T) {
	e, _, c := onEngine(t)
	ctx, n := t.Context(), 1200
	for i := range n {
		must(t, e, fmt.Sprintf("/a/%04d", i), fmt.Sprint(i))
	}
	before := e.Revision()
	must(t, e, "/a/later", "x")
	for _, test := range []struct {
		from     string
		limit    int64
		revision int64
		want     int // keys
		left     int // after them
	}{
		{"/a/", 0, 0, n + 1, 0},
		{"/a/", 0, before, n, 0},
		{"/a/", 1, 0, 1, n},
		{"/a/", 10, 0, 10, n - 9}, // kine's own RangeStream loses the rest
		{"/a/", 30, before, 30, n - 30},
		{"/a/", int64(n), before, n, 0},
		{"/a/", int64(n), 0, n, 1},
		{"/a/1000", 500, before, 200, 0},
		{"/b/", 5, 0, 0, 0},
	} {
		opts := []clientv3.OpOption{clientv3.WithRange(test.from[:2] + "0"), clientv3.WithLimit(test.limit), clientv3.WithRev(test.revision)}
		kvs, last, err := whole(c.GetStream(ctx, test.from, opts...))
		switch {
		case err != nil:
			t.Errorf("%+v: %v", test, err)
		case len(kvs) != test.want || last.More != (test.left > 0) || last.Count != int64(test.want+test.left) || last.Header.Revision != e.Revision():
			t.Errorf("%+v: %d keys, more %v, count %d, revision %d, want revision %d", test, len(kvs), last.More, last.Count, last.Header.Revision, e.Revision())
		case len(kvs) > 0 && string(kvs[0].Key) < test.from:
			t.Errorf("%+v: begins at %s", test, kvs[0].Key)
		}
		for i := 1; i < len(kvs); i++ {
			if string(kvs[i-1].Key) >= string(kvs[i].Key) {
				t.Fatalf("%+v: %s comes before %s", test, kvs[i-1].Key, kvs[i].Key)
			}
		}
	}
	if kvs, _, err := whole(c.GetStream(ctx, "/a/", clientv3.WithPrefix(), clientv3.WithKeysOnly())); err != nil || len(kvs) != n+1 || kvs[1].Value != nil {
		t.Errorf("keys only: %d keys, %v", len(kvs), err)
	}
	if kvs, last, err := whole(c.GetStream(ctx, "/a/", clientv3.WithPrefix(), clientv3.WithCountOnly())); err != nil || len(kvs) != 0 || last.Count != int64(n+1) {
		t.Errorf("count only: %d keys, %v, %v", len(kvs), last, err)
	}
	if kvs, _, err := whole(c.GetStream(ctx, "/a/0007")); err != nil || len(kvs) != 1 || string(kvs[0].Value) != "7" {
		t.Errorf("one key: %v, %v", kvs, err)
	}
	if _, _, err := whole(c.GetStream(ctx, "/a/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend))); status.Code(err) != codes.Unimplemented {
		t.Errorf("another order: %v, want Unimplemented", err)
	}
	if _, _, err := whole(c.GetStream(ctx, "/a/", clientv3.WithPrefix(), clientv3.WithRev(e.Revision()+1))); !errors.Is(err, rpctypes.ErrFutureRev) {
		t.Errorf("the future: %v, want ErrFutureRev", err)
	}
	if err := e.Compact(ctx, before, false); err != nil {
		t.Fatal(err)
	}
	if _, _, err := whole(c.GetStream(ctx, "/a/", clientv3.WithPrefix(), clientv3.WithRev(before-1))); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("what is compacted: %v, want ErrCompacted", err)
	}
}

// The API server stops reading a list whose objects it cannot decode, and does not end the
// context of the list.
func TestGetStreamLeavesNothingBehind(t *testing.T) {
	e, _, c := onEngine(t)
	for i := range 3000 {
		must(t, e, fmt.Sprintf("/a/%04d", i), "v")
	}
	before := runtime.NumGoroutine()
	for range 10 {
		stream, err := c.GetStream(context.Background(), "/a/", clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		if r := <-stream; r.Err() != nil || len(r.Kvs) == 0 {
			t.Fatalf("the first chunk: %v", r.Err())
		}
	}
	eventually.Goroutines(t, before)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := whole(c.GetStream(ctx, "/a/", clientv3.WithPrefix())); !errors.Is(err, context.Canceled) {
		t.Errorf("a list whose context has ended: %v, want %v", err, context.Canceled)
	}
}
