package inprocess_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc/metadata"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/kine/etcdapi"
	"github.com/karve-k8s/karve/kine/inprocess"
)

// memory is an engine without a file.
func memory(t testing.TB) *datastore.Engine {
	t.Helper()
	engine, err := datastore.OpenEngine(nil, datastore.Options{Durability: datastore.Memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close() })
	return engine
}

// must puts a key and answers its revision.
func must(t testing.TB, e *datastore.Engine, key, value string) int64 {
	t.Helper()
	resp, err := e.Put(t.Context(), datastore.PutRequest{Key: key, Value: []byte(value)})
	if err != nil {
		t.Fatal(err)
	}
	return resp.Revision
}

// onEngine is an engine, with a client and the URL that it has.
func onEngine(t *testing.T) (*datastore.Engine, string, *kubernetes.Client) {
	t.Helper()
	e := memory(t)
	served, err := inprocess.Serve(t.Context(), inprocess.Engine(e), etcdapi.New(e, kine.EtcdVersion), kine.ProgressInterval)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(served.Close)
	c, err := inprocess.NewClient(served.URL())
	if err != nil {
		t.Fatal(err)
	}
	return e, served.URL(), c
}

func TestClientReadsAndWrites(t *testing.T) {
	e, _, c := onEngine(t)
	ctx, k := t.Context(), c.Kubernetes
	made, err := k.OptimisticPut(ctx, "/a/1", []byte("1"), 0, kubernetes.PutOptions{})
	if err != nil || !made.Succeeded || made.KV != nil {
		t.Fatalf("create: %+v, %v", made, err)
	}
	again, err := k.OptimisticPut(ctx, "/a/1", []byte("2"), 0, kubernetes.PutOptions{GetOnFailure: true})
	if err != nil || again.Succeeded || again.KV == nil || string(again.KV.Value) != "1" {
		t.Errorf("create again: %+v, %v, want what is there", again, err)
	}
	updated, err := k.OptimisticPut(ctx, "/a/1", []byte("2"), made.Revision, kubernetes.PutOptions{GetOnFailure: true})
	if err != nil || !updated.Succeeded || updated.Revision != made.Revision+1 || updated.KV != nil {
		t.Errorf("update: %+v, %v", updated, err)
	}
	stale, err := k.OptimisticPut(ctx, "/a/1", []byte("3"), made.Revision, kubernetes.PutOptions{GetOnFailure: true})
	if err != nil || stale.Succeeded || stale.KV == nil || string(stale.KV.Value) != "2" {
		t.Errorf("stale update: %+v, %v, want what is there", stale, err)
	}
	got, err := k.Get(ctx, "/a/1", kubernetes.GetOptions{})
	if err != nil || got.Revision != updated.Revision || got.KV == nil || got.KV.Version != 2 || got.KV.CreateRevision != made.Revision {
		t.Errorf("get: %+v, %v", got, err)
	}
	for i := range 4 {
		must(t, e, fmt.Sprintf("/a/%d", i+2), "v")
	}
	must(t, e, "/b", "")
	page, err := k.List(ctx, "/a/", kubernetes.ListOptions{Limit: 2})
	if err != nil || len(page.Kvs) != 2 || page.Count != 5 || page.Revision != made.Revision+6 {
		t.Errorf("list: %+v, %v, want 2 of 5", page, err)
	}
	must(t, e, "/a/9", "later")
	rest, err := k.List(ctx, "/a/", kubernetes.ListOptions{Limit: 10, Revision: page.Revision, Continue: string(page.Kvs[1].Key) + "\x00"})
	if err != nil || len(rest.Kvs) != 3 || rest.Count != 3 {
		t.Errorf("the rest: %+v, %v, want 3 of 3", rest, err)
	}
	if n, err := k.Count(ctx, "/a/", kubernetes.CountOptions{}); n != 6 || err != nil {
		t.Errorf("count: %d, %v, want 6", n, err)
	}
	keys, err := c.KV.Get(ctx, "/a/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil || len(keys.Kvs) != 6 || len(keys.Kvs[0].Value) != 0 {
		t.Errorf("keys only: %+v, %v", keys, err)
	}
	if none, err := k.OptimisticDelete(ctx, "/none", made.Revision, kubernetes.DeleteOptions{GetOnFailure: true}); err != nil || none.Succeeded || none.KV != nil {
		t.Errorf("delete no key: %+v, %v", none, err)
	}
	wrong, err := k.OptimisticDelete(ctx, "/a/1", made.Revision, kubernetes.DeleteOptions{GetOnFailure: true})
	if err != nil || wrong.Succeeded || wrong.KV == nil {
		t.Errorf("delete an old revision: %+v, %v, want what is there", wrong, err)
	}
	gone, err := k.OptimisticDelete(ctx, "/a/1", updated.Revision, kubernetes.DeleteOptions{})
	if err != nil || !gone.Succeeded || gone.Revision != e.Revision() {
		t.Errorf("delete: %+v, %v", gone, err)
	}
}

func TestClientsErrorsAreEtcds(t *testing.T) {
	e, _, c := onEngine(t)
	old := must(t, e, "/a", "1")
	last := must(t, e, "/b", "1")
	if _, err := c.Kubernetes.List(t.Context(), "/", kubernetes.ListOptions{Revision: last + 1}); !errors.Is(err, rpctypes.ErrFutureRev) {
		t.Errorf("list the future: %v, want ErrFutureRev", err)
	}
	if _, err := c.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kubernetes.Get(t.Context(), "/a", kubernetes.GetOptions{Revision: old}); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("get what is compacted: %v, want ErrCompacted", err)
	}
	if _, err := c.Compact(t.Context(), last); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("compact again: %v, want ErrCompacted", err)
	}
	events := c.Watch(t.Context(), "/a", clientv3.WithRev(old))
	if r := <-events; r.CompactRevision != last || !errors.Is(r.Err(), rpctypes.ErrCompacted) {
		t.Errorf("watch what is compacted: %+v, want ErrCompacted and revision %d", r, last)
	}
	if r, open := <-events; open {
		t.Errorf("then %+v, want the end", r)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Kubernetes.Get(ended, "/a", kubernetes.GetOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("get with an ended context: %v, want Canceled", err)
	}
}

func TestClientWatches(t *testing.T) {
	e, _, c := onEngine(t)
	start := must(t, e, "/w/1", "1")
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(t.Context()))
	events := c.Watch(ctx, "/w/", clientv3.WithPrefix(), clientv3.WithRev(start), clientv3.WithPrevKV(), clientv3.WithFragment())
	deletes := c.Watch(ctx, "/w/", clientv3.WithPrefix(), clientv3.WithRev(start), clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	next := must(t, e, "/w/2", "2")
	must(t, e, "/w/2", "3")
	e.Delete(ctx, datastore.DeleteRequest{Key: "/w/1"})
	var got []*clientv3.Event
	for len(got) < 4 {
		r := <-events
		if r.Err() != nil {
			t.Fatal(r.Err())
		}
		got = append(got, r.Events...)
	}
	if !got[0].IsCreate() || got[0].PrevKv != nil || !got[2].IsModify() || string(got[2].PrevKv.Value) != "2" {
		t.Errorf("got %v, want a create and, third, an update with what was before", got)
	}
	if d := got[3]; d.Type != clientv3.EventTypeDelete || d.PrevKv == nil || string(d.PrevKv.Value) != "1" || d.Kv.ModRevision != next+2 {
		t.Errorf("got %v, want a delete with what was before", d)
	}
	if r := <-deletes; !r.Created {
		t.Errorf("got %+v, want to be told of the creation", r)
	}
	if r := <-deletes; len(r.Events) != 1 || r.Events[0].Type != clientv3.EventTypeDelete {
		t.Errorf("got %+v, want the delete alone", r)
	}
	cancel()
	if r, open := <-events; open {
		t.Errorf("got %+v after the end of the context, want a closed channel", r)
	}
}

func TestProgressComesAfterTheEvents(t *testing.T) {
	e, _, c := onEngine(t)
	events := c.Watch(t.Context(), "/w/", clientv3.WithPrefix())
	for range 50 {
		revision := must(t, e, fmt.Sprintf("/w/%d", e.Revision()), "")
		seen := false
		for synced := false; !synced; {
			if err := c.RequestProgress(t.Context()); err != nil {
				t.Fatal(err)
			}
			select {
			case r := <-events:
				for _, e := range r.Events {
					seen = seen || e.Kv.ModRevision == revision
				}
				if synced = r.IsProgressNotify() && r.Header.Revision >= revision; synced && !seen {
					t.Fatalf("told of revision %d before its event", r.Header.Revision)
				}
			case <-time.After(100 * time.Millisecond): // as the API server asks again
			}
		}
	}
}

// The API server's cache waits for the revision that a read of no key answers.
func TestReadingTheRevisionRequestsProgress(t *testing.T) {
	e, _, c := onEngine(t)
	cache := c.Watch(t.Context(), "/idle/", clientv3.WithPrefix(), clientv3.WithProgressNotify())
	plain := c.Watch(t.Context(), "/idle/", clientv3.WithPrefix())
	written := must(t, e, "/elsewhere", "")
	if resp, err := c.Kubernetes.Get(t.Context(), "/idle", kubernetes.GetOptions{}); err != nil || resp.Revision != written {
		t.Fatalf("get: %+v, %v", resp, err)
	}
	if r := eventually.Receive(t, "progress", cache); !r.IsProgressNotify() || r.Header.Revision != written {
		t.Errorf("got %+v, want the progress to %d", r, written)
	}
	c.Kubernetes.Get(t.Context(), "/idle", kubernetes.GetOptions{})
	select {
	case r := <-cache:
		t.Errorf("got %+v, want no progress to what is known", r)
	case r := <-plain:
		t.Errorf("got %+v without having asked for it", r)
	case <-time.After(20 * time.Millisecond):
	}
}

func TestProgressIsForTheStreamThatAsks(t *testing.T) {
	e, _, c := onEngine(t)
	mine := metadata.AppendToOutgoingContext(t.Context(), "source", "cache")
	asked, other := c.Watch(mine, "/w", clientv3.WithRev(1)), c.Watch(t.Context(), "/w", clientv3.WithRev(1))
	must(t, e, "/elsewhere", "")
	for told := false; !told; {
		if err := c.RequestProgress(mine); err != nil {
			t.Fatal(err)
		}
		select {
		case r := <-asked:
			told = r.IsProgressNotify()
		case <-time.After(100 * time.Millisecond):
		}
	}
	select {
	case r := <-other:
		t.Errorf("got %+v, want nothing: another stream asked", r)
	case <-time.After(20 * time.Millisecond):
	}
}

func TestCloseEndsTheWatchesOfOneClientOnly(t *testing.T) {
	e, url, c := onEngine(t)
	other, err := inprocess.NewClient(url)
	if err != nil {
		t.Fatal(err)
	}
	ends, stays := other.Watch(t.Context(), "/w"), c.Watch(t.Context(), "/w")
	other.Close()
	if r, open := <-ends; open {
		t.Errorf("got %+v, want the end of the watch", r)
	}
	if _, open := <-other.Watch(t.Context(), "/w"); open {
		t.Error("a closed client watches")
	}
	must(t, e, "/w", "")
	if r := <-stays; len(r.Events) != 1 {
		t.Errorf("got %+v, want the event: the other client was closed", r)
	}
}

func TestClientsEndWithTheShim(t *testing.T) {
	e := memory(t)
	shim, err := kine.Serve(t.Context(), e, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c, err := inprocess.NewClient(shim.LocalEndpoint())
	if err != nil {
		t.Fatal(err)
	}
	events := c.Watch(t.Context(), "/", clientv3.WithPrefix())
	shim.Close()
	if r, open := <-events; open {
		t.Errorf("got %+v, want the end of the watch", r)
	}
	if _, err := inprocess.NewClient(shim.LocalEndpoint()); !errors.Is(err, inprocess.ErrNotServed) {
		t.Errorf("a new client: %v, want ErrNotServed", err)
	}
}

func TestStatusIsOfAnEtcdWithProgress(t *testing.T) {
	e, url, c := onEngine(t)
	must(t, e, "/a", "1")
	if s, err := c.Status(t.Context(), url); err != nil || s.Version != kine.EtcdVersion || s.DbSize == 0 {
		t.Errorf("got %+v, %v, want version %s and a size", s, err, kine.EtcdVersion)
	}
}

func TestLeasesOfTheClient(t *testing.T) {
	e, _, c := onEngine(t)
	lease, err := c.Lease.Grant(t.Context(), 60)
	if err != nil || lease.TTL != 60 {
		t.Fatalf("grant: %+v, %v", lease, err)
	}
	for _, key := range []string{"/a", "/b"} {
		if resp, err := c.Kubernetes.OptimisticPut(t.Context(), key, nil, 0, kubernetes.PutOptions{LeaseID: lease.ID}); err != nil || !resp.Succeeded {
			t.Fatalf("put: %+v, %v", resp, err)
		}
	}
	if got := e.Stats().Leases; got != 1 {
		t.Errorf("%d leases, want 1", got)
	}
}
