package external

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/internal/eventually"
)

func TestWatchdog(t *testing.T) {
	guarded := func(question func(context.Context) error, use func(ctx context.Context)) (told error) {
		synctest.Test(t, func(t *testing.T) {
			w := &watchdog{life: t.Context(), question: question, lost: func(err error) { told = err }}
			ctx, end := w.guard(t.Context())
			defer end()
			use(ctx)
		})
		return told
	}
	told := guarded(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, func(ctx context.Context) {
		began := time.Now()
		<-ctx.Done()
		if took := time.Since(began); took != silentAfter+askLimit {
			t.Errorf("a call ended after %v", took)
		}
		if err := guardError(ctx, ctx.Err()); outcomeOf(err) != silent || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("its error is %v", err)
		}
		if err := guardError(ctx, nil); err != nil {
			t.Errorf("a call that was answered fails with %v", err)
		}
	})
	if told == nil {
		t.Error("nobody was told of a database that does not answer")
	}
	for name, answer := range map[string]error{"that answers": nil, "that refuses": &mysql.MySQLError{Number: 1040, Message: "Too many connections"}} {
		told := guarded(func(context.Context) error { return answer }, func(ctx context.Context) {
			time.Sleep(10 * silentAfter)
			if ctx.Err() != nil {
				t.Errorf("a long call of a database %s ended with %v", name, context.Cause(ctx))
			}
		})
		if told != nil {
			t.Errorf("a database %s is away: %v", name, told)
		}
	}
}

// soon is how long a call may take while the database is silent: with some time for a busy machine, and less than the
// timeout of any request.
const soon = 25 * time.Second

// A database that is stopped closes no connection. Calls fail all the same, and when it goes on, everything works again.
func TestDatabaseThatIsSilent(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		b := db.open(t)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		if err := b.Start(ctx); err != nil {
			t.Fatal(err)
		}
		direct := bridge{b}.Client(func(int64) {})
		first, err := direct.OptimisticPut(ctx, "/a/0", []byte("v"), 0, kubernetes.PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		events := b.Watch(ctx, first.Revision)
		db.run(t, "pause")
		t.Cleanup(func() { db.run(t, "resume") })
		calls := map[string]func() error{
			"get":    func() error { _, err := direct.Get(ctx, "/a/0", kubernetes.GetOptions{}); return err },
			"list":   func() error { _, err := direct.List(ctx, "/a/", kubernetes.ListOptions{}); return err },
			"count":  func() error { _, err := direct.Count(ctx, "/a/", kubernetes.CountOptions{}); return err },
			"create": func() error { _, err := b.Create(ctx, "/a/1", nil, 0); return err },
			"update": func() error { _, _, _, err := b.Update(ctx, "/a/0", nil, first.Revision, 0); return err },
			"delete": func() error { _, _, _, err := b.Delete(ctx, "/a/0", first.Revision); return err },
		}
		for _, when := range []string{"at once", "later"} {
			var all sync.WaitGroup
			for name, call := range calls {
				all.Go(func() {
					began := time.Now()
					err := call()
					if took := time.Since(began); status.Code(err) != codes.Unavailable || took > soon {
						t.Errorf("%s, %s: %v after %v, want Unavailable", name, when, err, took)
					} else {
						t.Logf("%s, %s: %v after %v", name, when, err, took.Round(10*time.Millisecond))
					}
				})
			}
			all.Wait()
		}
		db.run(t, "resume")
		began := time.Now()
		eventually.Nil(t, "a write after the database goes on", func() error {
			_, err := b.Create(ctx, "/a/end", nil, 0)
			if err != nil && strings.Contains(err.Error(), "exists") {
				err = nil // an attempt that was thought to have failed
			}
			return err
		})
		t.Logf("a write %v after it goes on", time.Since(began).Round(10*time.Millisecond))
		wantEvent(t, b, events, first.Revision, "/a/end")
		t.Logf("its event %v after it goes on", time.Since(began).Round(10*time.Millisecond))
	})
}

// wantEvent waits for the event of a key. A watch that ends begins again.
func wantEvent(t *testing.T, b *Backend, from server.WatchResult, revision int64, key string) {
	t.Helper()
	timeout := time.After(eventually.Limit)
	for {
		select {
		case batch, open := <-from.Eventc:
			if !open {
				time.Sleep(10 * time.Millisecond)
				from = b.Watch(t.Context(), revision)
			}
			for _, e := range batch.Events {
				if e.KV.Key == key {
					return
				}
			}
		case <-timeout:
			t.Fatalf("no event of %s", key)
		}
	}
}
