package inprocess_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/kine/etcdapi"
	"github.com/karve-k8s/karve/kine/inprocess"
)

// inBubble runs a test on an engine and a client with a clock that jumps.
func inBubble(t *testing.T, interval time.Duration, test func(t *testing.T, e *datastore.Engine, c *kubernetes.Client)) {
	synctest.Test(t, func(t *testing.T) {
		e := memory(t)
		served, err := inprocess.Serve(t.Context(), inprocess.Engine(e), etcdapi.New(e, kine.EtcdVersion), interval)
		if err != nil {
			t.Fatal(err)
		}
		defer served.Close()
		c, err := inprocess.NewClient(served.URL())
		if err != nil {
			t.Fatal(err)
		}
		test(t, e, c)
	})
}

// nothing fails the test if a watch has something to say.
func nothing(t *testing.T, when string, watches ...clientv3.WatchChan) {
	t.Helper()
	synctest.Wait()
	for i, w := range watches {
		select {
		case r := <-w:
			t.Errorf("%s: watch %d is told %+v", when, i, r)
		default:
		}
	}
}

// A watch that asked for it is told the revision one interval after a write, of any
// key; whoever has not asked, or knows it, is told nothing.
func TestNotificationsComeAnIntervalAfterAWrite(t *testing.T) {
	const interval = 7 * time.Second
	inBubble(t, interval, func(t *testing.T, e *datastore.Engine, c *kubernetes.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		asked := c.Watch(ctx, "/quiet/", clientv3.WithPrefix(), clientv3.WithRev(e.Revision()+1), clientv3.WithProgressNotify())
		not := c.Watch(ctx, "/quiet/", clientv3.WithPrefix())
		later := c.Watch(ctx, "/quiet/", clientv3.WithPrefix(), clientv3.WithRev(100), clientv3.WithProgressNotify())
		busy := c.Watch(ctx, "/busy/", clientv3.WithPrefix(), clientv3.WithProgressNotify(), clientv3.WithRev(e.Revision()+1))
		time.Sleep(time.Hour)
		nothing(t, "nothing was written", asked, not, later, busy)

		// The key of the API server's compactor does not begin with a slash.
		for range 3 {
			revision := must(t, e, "compact_rev_key", "")
			time.Sleep(interval - time.Millisecond)
			nothing(t, "before the interval is over", asked, not, later, busy)
			time.Sleep(time.Millisecond)
			synctest.Wait()
			for name, w := range map[string]clientv3.WatchChan{"quiet": asked, "busy": busy} {
				select {
				case r := <-w:
					if !r.IsProgressNotify() || r.Header.Revision != revision {
						t.Errorf("%s: %+v, want progress to %d", name, r, revision)
					}
				default:
					t.Errorf("%s: is not told", name)
				}
			}
			time.Sleep(time.Hour)
			nothing(t, "known", asked, not, later, busy)
		}

		revision := must(t, e, "/busy/1", "")
		if r := <-busy; len(r.Events) != 1 {
			t.Errorf("%+v, want the event", r)
		}
		if r := <-asked; !r.IsProgressNotify() || r.Header.Revision != revision {
			t.Errorf("%+v, want progress to %d", r, revision)
		}
		nothing(t, "the event told it", busy, not, later)
	})
}

// The engine answers a request for progress without waiting for a clock.
func TestProgressComesImmediately(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, e *datastore.Engine, c *kubernetes.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began := time.Now()
		watch := c.Watch(ctx, "/w/", clientv3.WithPrefix())
		for range 50 {
			event := must(t, e, "/w/1", "")
			if r := <-watch; len(r.Events) != 1 || r.Events[0].Kv.ModRevision != event {
				t.Fatalf("got %+v, want the event", r)
			}
			revision := must(t, e, "/elsewhere", "")
			if err := c.RequestProgress(ctx); err != nil {
				t.Fatal(err)
			}
			if r := <-watch; !r.IsProgressNotify() || r.Header.Revision != revision {
				t.Fatalf("got %+v, want progress to %d", r, revision)
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("took %v", took)
		}
	})
}

// A quiet watch can be renewed from what it was told, however often history is
// compacted in between; from where it began it cannot.
func TestQuietWatchesKeepAheadOfCompaction(t *testing.T) {
	inBubble(t, kine.ProgressInterval, func(t *testing.T, e *datastore.Engine, c *kubernetes.Client) {
		begin := e.Revision() + 1
		next := begin
		for round := range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			quiet := c.Watch(ctx, "/quiet/", clientv3.WithPrefix(), clientv3.WithRev(next), clientv3.WithProgressNotify())
			for i := range 30 {
				must(t, e, fmt.Sprint("/busy/", i), "")
			}
			r := <-quiet
			if !r.IsProgressNotify() || r.Header.Revision != e.Revision() {
				t.Fatalf("round %d: %+v, want progress to %d", round, r, e.Revision())
			}
			next = r.Header.Revision + 1
			cancel()
			if err := e.Compact(t.Context(), r.Header.Revision, false); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if r := <-c.Watch(ctx, "/quiet/", clientv3.WithPrefix(), clientv3.WithRev(begin)); r.CompactRevision != e.CompactRevision() {
			t.Errorf("from the beginning: %+v, want it compacted", r)
		}
	})
}

// "created" has the revision at which the watch begins, not a newer one.
func TestCreatedHasTheStartOfTheWatch(t *testing.T) {
	e, _, c := onEngine(t)
	writing, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for writing.Err() == nil {
			e.Put(context.Background(), datastore.PutRequest{Key: "/w"})
		}
	}()
	defer func() { stop(); <-done }()
	for range 300 {
		ctx, cancel := context.WithCancel(t.Context())
		events := c.Watch(ctx, "/w", clientv3.WithCreatedNotify())
		created, first := <-events, <-events
		if !created.Created || len(first.Events) == 0 || first.Events[0].Kv.ModRevision != created.Header.Revision+1 {
			t.Fatalf("created %+v, then %+v; want the event after that revision", created, first)
		}
		cancel()
	}
}
