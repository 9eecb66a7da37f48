package datastore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/karve-k8s/karve/internal/eventually"
)

func watch(t testing.TB, e *Engine, req WatchRequest) *Watcher {
	t.Helper()
	w, err := e.Watch(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func next(t testing.TB, w *Watcher) *WatchResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	resp, err := w.Next(ctx)
	if err != nil {
		t.Fatalf("watch: %v", err)
	}
	return resp
}

func TestWatchOfEveryShapeSeesOnlyItsKeys(t *testing.T) {
	e := openTest(t, "", Options{Durability: Memory})
	all := watch(t, e, WatchRequest{Key: "\x00", End: "\x00"})
	prefix := watch(t, e, WatchRequest{Key: "/a/", End: PrefixEnd("/a/")})
	longer := watch(t, e, WatchRequest{Key: "/a/b/", End: PrefixEnd("/a/b/")})
	single := watch(t, e, WatchRequest{Key: "/a/x"})
	span := watch(t, e, WatchRequest{Key: "/a/w", End: "/c"})
	future := watch(t, e, WatchRequest{Key: "/a/", End: PrefixEnd("/a/"), StartRevision: 4})
	got := make([]chan string, 6)
	for i, w := range []*Watcher{all, prefix, longer, single, span, future} {
		got[i] = make(chan string, 100)
		go func() {
			for {
				resp, err := w.Next(context.Background())
				if err != nil {
					close(got[i])
					return
				}
				for _, e := range resp.Events {
					got[i] <- e.KV.Key
				}
			}
		}()
	}
	for _, key := range []string{"/a/b/c", "/a/x", "/a/x", "/b"} {
		put(t, e, key, "v")
	}
	for i, want := range [][]string{
		{"/a/b/c", "/a/x", "/a/x", "/b"}, {"/a/b/c", "/a/x", "/a/x"}, {"/a/b/c"}, {"/a/x", "/a/x"}, {"/a/x", "/a/x", "/b"}, {"/a/x"},
	} {
		for _, key := range want {
			select {
			case k := <-got[i]:
				if k != key {
					t.Errorf("watch %d: got %s, want %s", i, k, key)
				}
			case <-time.After(eventually.Limit):
				t.Fatalf("watch %d: no event of %s", i, key)
			}
		}
	}
	e.Close()
	for i := range got {
		for key := range got[i] {
			t.Errorf("watch %d: unexpected event of %s", i, key)
		}
	}
}

func TestWatchDoesNotSplitRevisions(t *testing.T) {
	e := openTest(t, "", Options{Durability: Memory})
	for range 3 {
		var ops []Op
		for i := range 700 {
			ops = append(ops, Op{Put: &PutRequest{Key: fmt.Sprintf("/%d", i), Value: []byte("v")}})
		}
		if _, err := e.Txn(t.Context(), TxnRequest{Then: ops}); err != nil {
			t.Fatal(err)
		}
	}
	w := watch(t, e, WatchRequest{Key: "/", End: "0", StartRevision: 1, PrevKV: true})
	first, second := next(t, w), next(t, w)
	if len(first.Events) != 1400 || first.Revision != 3 || len(second.Events) != 700 || second.Revision != 4 {
		t.Errorf("got %d events to %d, then %d to %d; want 1400 to 3, 700 to 4", len(first.Events), first.Revision, len(second.Events), second.Revision)
	}
	if e := second.Events[0]; e.Prev == nil || e.Prev.ModRevision != 3 || e.IsCreate() || !first.Events[0].IsCreate() {
		t.Errorf("previous value: %+v", e)
	}
}

func TestProgressComesAfterEvents(t *testing.T) {
	e := openTest(t, "", Options{Durability: Memory})
	w := watch(t, e, WatchRequest{Key: "/a"})
	put(t, e, "/a", "1")
	put(t, e, "/b", "1")
	w.RequestProgress()
	if resp := next(t, w); len(resp.Events) != 1 {
		t.Fatalf("got %+v, want the event first", resp)
	}
	if resp := next(t, w); len(resp.Events) != 0 || resp.Revision != 3 {
		t.Fatalf("got %+v, want progress at 3", resp)
	}
	waiting := make(chan *WatchResponse)
	go func() { resp, _ := w.Next(context.Background()); waiting <- resp }()
	for e.watchers.mu.Lock(); e.watchers.parked == 0; e.watchers.mu.Lock() {
		e.watchers.mu.Unlock()
		runtime.Gosched()
	}
	e.watchers.mu.Unlock()
	put(t, e, "/b", "2")
	w.RequestProgress()
	if resp := <-waiting; resp == nil || len(resp.Events) != 0 || resp.Revision != 4 {
		t.Fatalf("got %+v, want progress at 4", resp)
	}
}

// Compaction never overtakes a waiting watcher. A watcher that does not read its events gets
// ErrCompacted. Neither blocks other clients.
func TestCompactionOvertakesOnlySlowWatchers(t *testing.T) {
	e := openTest(t, "", Options{})
	slow := watch(t, e, WatchRequest{Key: "/a", StartRevision: 2})
	quiet := watch(t, e, WatchRequest{Key: "/quiet"})
	got := make(chan *WatchResponse, 1)
	go func() { resp, _ := quiet.Next(context.Background()); got <- resp }()
	for e.watchers.mu.Lock(); e.watchers.parked == 0; e.watchers.mu.Lock() {
		e.watchers.mu.Unlock()
		runtime.Gosched()
	}
	e.watchers.mu.Unlock()
	for range 2000 / 20 {
		var ops []Op
		for i := range 20 {
			ops = append(ops, Op{Put: &PutRequest{Key: fmt.Sprintf("/a%d", i)}})
		}
		ops[0].Put.Key = "/a"
		if _, err := e.Txn(t.Context(), TxnRequest{Then: ops}); err != nil {
			t.Fatal(err)
		}
	}
	if got := e.Stats(); got.Watchers != 2 || got.SlowWatchers != 1 {
		t.Errorf("%d watchers, %d slow; want 2, 1", got.Watchers, got.SlowWatchers)
	}
	if err := e.Compact(t.Context(), e.Revision()-1, true); err != nil {
		t.Fatal(err)
	}
	if got := e.Stats().Events; got != 40 {
		t.Errorf("%d events kept, want those of two revisions, 40", got)
	}
	if _, err := slow.Next(t.Context()); !errors.Is(err, ErrCompacted) {
		t.Errorf("slow watcher: %v, want %v", err, ErrCompacted)
	}
	if _, err := e.Watch(WatchRequest{Key: "/a", StartRevision: e.CompactRevision() - 1}); !errors.Is(err, ErrCompacted) {
		t.Errorf("watch of a compacted revision: %v", err)
	}
	put(t, e, "/quiet", "now")
	if resp := <-got; resp == nil || len(resp.Events) != 1 || string(resp.Events[0].KV.Value) != "now" {
		t.Errorf("quiet watcher: %+v", resp)
	}
}

// A put that is published at the moment in which a watcher goes to sleep wakes it.
func TestNoWakeIsLost(t *testing.T) {
	e := openTest(t, "", Options{Durability: Memory})
	const watchers, rounds = 4, 3000
	seen := make(chan int64, watchers)
	for range watchers {
		w := watch(t, e, WatchRequest{Key: "/", End: "0"})
		go func() {
			for {
				resp, err := w.Next(context.Background())
				if err != nil {
					return
				}
				for _, e := range resp.Events {
					seen <- e.KV.ModRevision
				}
			}
		}()
	}
	for i := range rounds {
		revision := put(t, e, "/a", "v")
		for range watchers {
			select {
			case got := <-seen:
				if got != revision {
					t.Fatalf("round %d: event of revision %d, want %d", i, got, revision)
				}
			case <-time.After(eventually.Limit):
				t.Fatalf("round %d: a watcher sleeps on", i)
			}
		}
	}
}

// Many watchers come, go and read while writers write. All see the same history.
func TestWatchersAgree(t *testing.T) {
	e := openTest(t, "", Options{CacheBytes: 2000})
	const writes = 300
	var readers, writers sync.WaitGroup
	histories := make([]string, 20)
	for i := range histories {
		w := watch(t, e, WatchRequest{Key: "/k/", End: PrefixEnd("/k/"), StartRevision: 2})
		readers.Go(func() {
			n, last := 0, int64(0)
			for n < writes {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+i)*time.Millisecond)
				resp, err := w.Next(ctx)
				cancel()
				if errors.Is(err, context.DeadlineExceeded) {
					continue
				}
				if err != nil {
					t.Errorf("watcher %d: %v", i, err)
					return
				}
				for _, e := range resp.Events {
					if e.KV.ModRevision < last {
						t.Errorf("watcher %d: revision %d after %d", i, e.KV.ModRevision, last)
					}
					last = e.KV.ModRevision
					histories[i] += fmt.Sprintf("%d:%s ", e.KV.ModRevision, e.KV.Value)
					n++
				}
			}
		})
	}
	for c := range 6 {
		writers.Go(func() {
			for i := range writes / 6 {
				put(t, e, fmt.Sprintf("/k/%d", i%3), fmt.Sprintf("%d-%d", c, i))
				put(t, e, "/other", "x")
			}
		})
	}
	writers.Wait()
	readers.Wait()
	for i := range histories {
		if histories[i] != histories[0] {
			t.Errorf("watcher %d saw another history:\n%s\n%s", i, histories[i], histories[0])
		}
	}
}

// The size of a response is limited in bytes, too. It still has whole revisions.
func TestWatchResponsesAreBounded(t *testing.T) {
	e := openTest(t, "", Options{Durability: Memory})
	const writes = 20
	for range writes {
		put(t, e, "/a", string(make([]byte, 1<<20)))
	}
	w := watch(t, e, WatchRequest{Key: "/a", StartRevision: 2})
	for n := 0; n < writes; {
		resp := next(t, w)
		if len(resp.Events) > watchBytes>>20 {
			t.Errorf("%d MiB in one response, want at most %d", len(resp.Events), watchBytes>>20)
		}
		n += len(resp.Events)
		if last := resp.Events[len(resp.Events)-1].KV.ModRevision; last != int64(n+1) || n < writes && resp.Revision != last {
			t.Errorf("revision %d of events up to %d, want %d", resp.Revision, last, n+1)
		}
	}
}

// PollTo stops at a revision, reports that there is more, and continues from there.
func TestPollToStopsAtARevision(t *testing.T) {
	e := openTest(t, "", Options{Durability: Memory})
	w := watch(t, e, WatchRequest{Key: "/", End: "0", StartRevision: 2, Wake: func() {}})
	if got := w.Opened(); got != 1 {
		t.Errorf("opened at %d, want 1", got)
	}
	for i := range 4 { // revisions 2 to 5
		put(t, e, []string{"/a", "other"}[i%2], "v")
	}
	for _, step := range []struct {
		last, want int64
		events     int
		ask, more  bool
	}{{1, 1, 0, true, true}, {3, 3, 1, false, true}, {3, 3, 0, true, true}, {4, 4, 1, false, true}, {100, 5, 0, true, false}} {
		if step.ask {
			w.RequestProgress()
		}
		resp, more, err := w.PollTo(step.last)
		if err != nil || resp == nil || resp.Revision != step.want || len(resp.Events) != step.events || more != step.more {
			t.Errorf("to %d: %+v, %v, %v; want %d events up to %d, more: %v", step.last, resp, more, err, step.events, step.want, step.more)
		}
	}
}

func TestWaitForReturnsAtTheRevision(t *testing.T) {
	e := openTest(t, "", Options{Durability: Memory})
	if err := e.WaitFor(t.Context(), 1); err != nil {
		t.Errorf("for what has happened: %v", err)
	}
	reached := make(chan error, 1)
	go func() {
		err := e.WaitFor(context.Background(), 100)
		if e.Revision() < 100 {
			t.Errorf("returned at revision %d", e.Revision())
		}
		reached <- err
	}()
	for e.Revision() < 100 {
		put(t, e, "a", "v")
	}
	if err := <-reached; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { reached <- e.WaitFor(ctx, 1000) }()
	cancel()
	if err := <-reached; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	go func() { reached <- e.WaitFor(context.Background(), 1000) }()
	e.Close()
	if err := <-reached; !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if n := e.Stats().Watchers; n != 0 {
		t.Errorf("%d watchers are left", n)
	}
}
