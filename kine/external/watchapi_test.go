package external_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/kine/external"
	"github.com/karve-k8s/karve/kine/external/externaltest"
)

// onASocket serves an engine as a kine backend, and returns the endpoint.
func onASocket(t *testing.T) (*datastore.Engine, string) {
	t.Helper()
	engine, err := datastore.OpenEngine(nil, datastore.Options{Durability: datastore.Memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close() })
	shim, err := kine.ServeDatastore(t.Context(), external.Bridge(externaltest.Backend(engine)), kine.ProgressInterval, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shim.Close() })
	return engine, shim.Endpoint()
}

func write(t *testing.T, e *datastore.Engine, key string) int64 {
	t.Helper()
	r, err := e.Put(t.Context(), datastore.PutRequest{Key: key, Value: []byte("v")})
	if err != nil {
		t.Fatal(err)
	}
	return r.Revision
}

// A client creates watches with a history while it asks for progress. Progress to a revision comes
// after all events up to it. kine's bridge ends the process here now and then.
func TestWatchesOnASocket(t *testing.T) {
	e, endpoint := onASocket(t)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	first := write(t, e, "/a/0")
	for i := range 50 {
		write(t, e, fmt.Sprintf("/a/%d", i+1))
	}
	asking, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for asking.Err() == nil {
			client.RequestProgress(ctx)
		}
	}()
	for i := range 10 {
		own, end := context.WithCancel(ctx)
		watch := client.Watch(own, "/a/", clientv3.WithPrefix(), clientv3.WithRev(first), clientv3.WithPrevKV())
		want := first + 50 + int64(i)
		for seen := first - 1; seen < want; {
			r := eventually.Receive(t, "an event or progress", watch)
			if r.Err() != nil {
				t.Fatal(r.Err())
			}
			for _, event := range r.Events {
				if event.Kv.ModRevision != seen+1 {
					t.Fatalf("event of %d after %d", event.Kv.ModRevision, seen)
				}
				seen++
			}
			if r.IsProgressNotify() && r.Header.Revision > seen {
				t.Fatalf("progress to %d before the event of %d", r.Header.Revision, seen+1)
			}
		}
		end()
		write(t, e, "/a/0")
	}
}

func TestWatchRequestsOnASocket(t *testing.T) {
	e, endpoint := onASocket(t)
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := pb.NewWatchClient(conn).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	next := func() string {
		t.Helper()
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("%d at %d", r.WatchId, r.Header.Revision)
		if r.Created {
			text += " created"
		}
		if r.Canceled {
			text += fmt.Sprintf(" canceled %d %s", r.CompactRevision, r.CancelReason)
		}
		for _, e := range r.Events {
			text += fmt.Sprintf(" %v %s", e.Type, e.Kv.Key)
			if e.PrevKv != nil {
				text += " with previous"
			}
		}
		return text
	}
	create := func(r *pb.WatchCreateRequest) *pb.WatchRequest {
		return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}}
	}
	for range 4 {
		write(t, e, "/a") // 2 to 5
	}
	if err := e.Compact(ctx, 3, false); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		send *pb.WatchRequest
		put  string
		want string
	}{
		{send: create(&pb.WatchCreateRequest{Key: []byte("/a")}), want: "0 at 5 created"},
		{put: "/b"}, // 6
		{put: "/a", want: "0 at 7 PUT /a"},
		{send: create(&pb.WatchCreateRequest{Key: []byte("/a"), WatchId: 7, PrevKv: true, StartRevision: 8}), want: "7 at 7 created"},
		{send: &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: 0}}}, want: "0 at 7 canceled 0 "},
		{put: "/a", want: "7 at 8 PUT /a with previous"},
		{send: &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}, want: "7 at 8"},
		{send: create(&pb.WatchCreateRequest{Key: []byte("/a"), WatchId: 7}), want: "-1 at 8 created canceled 0 mvcc: duplicate watch ID provided on the WatchStream"},
		{send: create(&pb.WatchCreateRequest{Key: []byte("/b"), RangeEnd: []byte("/a")}), want: "-1 at 8 created canceled 0 mvcc: watcher range is empty"},
		{send: create(&pb.WatchCreateRequest{Key: []byte("/a"), StartRevision: -1}), want: "-1 at 8 created canceled 0 etcdserver: mvcc: required revision has been compacted"},
		{send: create(&pb.WatchCreateRequest{Key: []byte("/a"), StartRevision: 2}), want: "1 at 8 created"},
		{want: "1 at 8 canceled 3 "},
		{send: create(&pb.WatchCreateRequest{Key: []byte("/b"), WatchId: 9, StartRevision: 9, Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}}), want: "9 at 8 created"},
		{put: "/b"},
		{put: "/a", want: "7 at 10 PUT /a with previous"},
	} {
		if step.send != nil {
			if err := stream.Send(step.send); err != nil {
				t.Fatal(err)
			}
		}
		if step.put != "" {
			write(t, e, step.put)
		}
		if step.want == "" {
			continue
		}
		if got := next(); got != step.want {
			t.Errorf("after %v: %q, want %q", step.send, got, step.want)
		}
	}
}
