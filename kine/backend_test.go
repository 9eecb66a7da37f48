package kine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/datastore"
)

// memory is a backend of an engine without a file.
func memory(t testing.TB) *Backend {
	t.Helper()
	engine, err := datastore.OpenEngine(nil, datastore.Options{Durability: datastore.Memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close() })
	return NewBackend(engine)
}

// must creates a key and answers its revision.
func must(t testing.TB, b *Backend, key, value string) int64 {
	t.Helper()
	rev, err := b.Create(t.Context(), key, []byte(value), 0)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func TestCreateOfWhatIsThereIsErrKeyExistsItself(t *testing.T) {
	b := memory(t)
	made := must(t, b, "/a", "1")
	rev, err := b.Create(t.Context(), "/a", []byte("2"), 0)
	if err != server.ErrKeyExists || rev != made {
		t.Errorf("got %d, %v, want %d and ErrKeyExists", rev, err, made)
	}
	if _, _, deleted, err := b.Delete(t.Context(), "/a", 0); !deleted || err != nil {
		t.Fatalf("delete: %v, %v", deleted, err)
	}
	if again := must(t, b, "/a", "3"); again != made+2 {
		t.Errorf("created again at %d, want %d", again, made+2)
	}
}

func TestUpdateAnswersWhatIsThereOnAMismatch(t *testing.T) {
	b := memory(t)
	made := must(t, b, "/a", "1")
	for name, revision := range map[string]int64{"another revision": made + 7, "revision 0": 0} {
		rev, kv, ok, err := b.Update(t.Context(), "/a", []byte("2"), revision, 0)
		if rev != made || kv == nil || string(kv.Value) != "1" || ok || err != nil {
			t.Errorf("%s: got %d, %+v, %v, %v, want %d, the key, false, nil", name, rev, kv, ok, err, made)
		}
		rev, kv, ok, err = b.Update(t.Context(), "/none", []byte("2"), revision, 0)
		if rev != made || kv != nil || ok || err != nil {
			t.Errorf("%s of no key: got %d, %+v, %v, %v, want %d, nil, false, nil", name, rev, kv, ok, err, made)
		}
	}
	rev, kv, ok, err := b.Update(t.Context(), "/a", []byte("2"), made, 0)
	want := server.KeyValue{Key: "/a", Value: []byte("2"), Version: 2, CreateRevision: made, ModRevision: made + 1}
	if rev != made+1 || kv == nil || fmt.Sprint(*kv) != fmt.Sprint(want) || !ok || err != nil {
		t.Errorf("got %d, %+v, %v, %v, want %d, %+v, true, nil", rev, kv, ok, err, made+1, want)
	}
}

func TestDelete(t *testing.T) {
	b := memory(t)
	made := must(t, b, "/a", "1")
	if rev, kv, ok, err := b.Delete(t.Context(), "/none", 0); rev != made || kv != nil || ok || err != nil {
		t.Errorf("no key: got %d, %v, %v, %v, want %d, nil, false, nil", rev, kv, ok, err, made)
	}
	if rev, kv, ok, err := b.Delete(t.Context(), "/a", made+7); rev != made || kv == nil || ok || err != nil {
		t.Errorf("another revision: got %d, %v, %v, %v, want %d, the key, false, nil", rev, kv, ok, err, made)
	}
	if rev, kv, ok, err := b.Delete(t.Context(), "/a", made); rev != made+1 || kv == nil || string(kv.Value) != "1" || !ok || err != nil {
		t.Errorf("got %d, %v, %v, %v, want %d, the key as it was, true, nil", rev, kv, ok, err, made+1)
	}
}

func TestListAndCount(t *testing.T) {
	b := memory(t)
	for i := range 5 {
		must(t, b, fmt.Sprintf("/a/%d", i), "v")
	}
	must(t, b, "/b", "v")
	rev, kvs, err := b.List(t.Context(), "/a/", "/a0", 3, 0, true)
	if err != nil || rev != b.engine.Revision() || len(kvs) != 3 || kvs[0].Key != "/a/0" || kvs[0].Value != nil {
		t.Errorf("got %d, %v, %v, want 3 keys without values", rev, kvs, err)
	}
	old, kvs, err := b.List(t.Context(), "/a/", "/a0", 0, kvs[1].ModRevision, false)
	if err != nil || old != rev || len(kvs) != 2 || string(kvs[0].Value) != "v" {
		t.Errorf("at the second key's revision: got %d, %v, %v, want 2 keys", old, kvs, err)
	}
	if rev, n, err := b.Count(t.Context(), "/a/", "/a0", 0); rev != old || n != 5 || err != nil {
		t.Errorf("count: got %d, %d, %v, want %d, 5", rev, n, err, old)
	}
}

func TestRevisionsOutOfRange(t *testing.T) {
	b := memory(t)
	must(t, b, "/a", "1")
	old := must(t, b, "/b", "1")
	last := must(t, b, "/c", "1")
	if _, err := b.Compact(t.Context(), last+1); err != server.ErrFutureRev {
		t.Errorf("compact the future: %v, want ErrFutureRev", err)
	}
	if rev, err := b.Compact(t.Context(), last); rev != last || err != nil {
		t.Errorf("compact: %d, %v, want %d", rev, err, last)
	}
	for _, r := range []int64{last, old} {
		if _, err := b.Compact(t.Context(), r); err != server.ErrCompacted {
			t.Errorf("compact %d again: %v, want ErrCompacted", r, err)
		}
	}
	if _, _, err := b.Get(t.Context(), "/a", old, false); err != server.ErrCompacted {
		t.Errorf("get what is compacted: %v, want ErrCompacted", err)
	}
	if _, _, err := b.List(t.Context(), "/a", "/z", 0, last+1, false); err != server.ErrFutureRev {
		t.Errorf("list the future: %v, want ErrFutureRev", err)
	}
	result := b.Watch(t.Context(), "/a", "", old)
	if result.CompactRevision != last || result.CurrentRevision != last {
		t.Errorf("watch what is compacted: %+v, want revisions %d", result, last)
	}
}

func TestErrorsAreStatuses(t *testing.T) {
	for in, want := range map[error]error{
		fmt.Errorf("put: %w", datastore.ErrNoSpace): rpctypes.ErrGRPCNoSpace,
		fmt.Errorf("get: %w", context.Canceled):     context.Canceled,
	} {
		if got := toStatus(in); !errors.Is(got, want) {
			t.Errorf("%v: got %v, want %v", in, got, want)
		}
	}
	for in, want := range map[error]codes.Code{
		datastore.ErrNoSpace: codes.ResourceExhausted, datastore.ErrUnknownOutcome: codes.Unavailable,
		datastore.ErrClosed: codes.Unavailable, datastore.ErrCorrupt: codes.DataLoss, errors.New("?"): codes.Internal,
	} {
		if got := status.Code(toStatus(fmt.Errorf("x: %w", in))); got != want {
			t.Errorf("%v: got %v, want %v", in, got, want)
		}
	}
	b := memory(t)
	if _, err := b.Create(t.Context(), "/big", make([]byte, maxRequest), 0); err != rpctypes.ErrGRPCRequestTooLarge {
		t.Errorf("too large: %v, want ErrGRPCRequestTooLarge", err)
	}
	b.engine.Close()
	if _, err := b.Create(t.Context(), "/a", nil, 0); status.Code(err) != codes.Unavailable {
		t.Errorf("closed: %v, want Unavailable", err)
	}
}

func TestAWatchStartsAtItsRevisionAndEndsWithItsContext(t *testing.T) {
	b := memory(t)
	must(t, b, "/w/0", "0")
	start := must(t, b, "/w/1", "1")
	ctx, cancel := context.WithCancel(t.Context())
	result := b.Watch(ctx, "/w/", "/w0", start)
	var got []string
	take := func() {
		for _, e := range <-result.Events {
			got = append(got, fmt.Sprintf("%s create=%v delete=%v prev=%v", e.KV.Key, e.Create, e.Delete, e.PrevKV != nil))
		}
	}
	take()
	rev, _, _, _ := b.Update(ctx, "/w/1", []byte("2"), start, 0)
	must(t, b, "/elsewhere", "")
	take()
	b.Delete(ctx, "/w/1", rev)
	take()
	want := "/w/1 create=true delete=false prev=false\n/w/1 create=false delete=false prev=true\n/w/1 create=false delete=true prev=true"
	if got := strings.Join(got, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	cancel()
	if events, open := <-result.Events; open {
		t.Errorf("got %v after the end of the context, want a closed channel", events)
	}
}

func TestWaitForSyncIsNotBeforeTheEventsAndNeedsNoTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory(t)
		ctx, cancel := context.WithCancel(t.Context())
		idle := b.Watch(ctx, "/idle/", "/idle0", 0)
		busy := b.Watch(ctx, "/w/", "/w0", 0)
		rev := must(t, b, "/w/1", "1")
		began, synced := time.Now(), make(chan struct{})
		go func() {
			b.WaitForSyncTo(rev)
			close(synced)
		}()
		synctest.Wait()
		select {
		case <-synced:
			t.Error("synced before the event was taken")
		default:
		}
		<-busy.Events
		<-synced
		if took := time.Since(began); took != 0 {
			t.Errorf("took %v, want no wait for a timer", took)
		}
		cancel()
		<-idle.Events
		<-busy.Events
		b.WaitForSyncTo(must(t, b, "/w/2", "1")) // nobody to wait for
		b.engine.Close()
	})
}

func TestAKeyWithATTLExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory(t)
		made, err := b.Create(t.Context(), "/a", []byte("1"), 60)
		if err != nil {
			t.Fatal(err)
		}
		_, kv, err := b.Get(t.Context(), "/a", 0, false)
		if err != nil || kv == nil || kv.Lease != 60 {
			t.Fatalf("got %+v, %v, want a lease of 60", kv, err)
		}
		time.Sleep(59 * time.Second)
		if _, _, ok, err := b.Update(t.Context(), "/a", []byte("2"), made, 60); !ok || err != nil {
			t.Fatalf("update: %v, %v", ok, err)
		}
		if _, _, ok, _ := b.Update(t.Context(), "/a", []byte("3"), made, 60); ok {
			t.Fatal("update of an old revision succeeded")
		}
		time.Sleep(59 * time.Second)
		if _, kv, _ := b.Get(t.Context(), "/a", 0, false); kv == nil {
			t.Fatal("gone 59 s after an update with a TTL of 60 s")
		}
		if n := b.engine.Stats().Leases; n != 1 {
			t.Errorf("%d leases, want 1: the first has expired, that of the refused update is revoked", n)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if _, kv, _ := b.Get(t.Context(), "/a", 0, false); kv != nil {
			t.Errorf("still there after 61 s: %+v", kv)
		}
		b.engine.Close()
	})
}

func TestALeaseCanBeShared(t *testing.T) {
	b := memory(t)
	lease, err := b.Grant(t.Context(), 3600)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"/a", "/b"} {
		if _, err := b.Create(t.Context(), key, nil, lease); err != nil {
			t.Fatal(err)
		}
	}
	info, err := b.engine.TimeToLive(lease, true)
	if err != nil || len(info.Keys) != 2 || info.TTL != 3600 {
		t.Errorf("got %+v, %v, want two keys and 3600 s", info, err)
	}
	if _, kv, err := b.Get(t.Context(), "/a", 0, false); err != nil || kv.Lease != 3600 {
		t.Errorf("got %+v, %v, want the TTL as the lease", kv, err)
	}
}
