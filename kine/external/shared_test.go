package external

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/tls"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/karve-k8s/karve/internal/eventually"
)

// open is a backend of the database, which the test starts itself.
func (db database) open(t *testing.T) *Backend {
	t.Helper()
	e, err := Parse(db.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	b, err := e.Open(ctx, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// What one server has acknowledged, every later read of another one has.
func TestDatabaseReadsWhatAnotherServerHasWritten(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		a, _ := db.serve(t, Options{})
		b, _ := db.serve(t, Options{})
		ctx := t.Context()
		var work sync.WaitGroup
		for i := range 8 {
			from, to := a, b
			if i%2 == 1 {
				from, to = b, a
			}
			work.Go(func() {
				prefix := fmt.Sprintf("/linear/%d/", i)
				var revision int64
				for n := range 40 {
					r, err := from.Kubernetes.OptimisticPut(ctx, prefix+"one", fmt.Appendf(nil, "%d", n), revision, kubernetes.PutOptions{})
					if err != nil || !r.Succeeded {
						t.Errorf("put %d: %+v, %v", n, r, err)
						return
					}
					revision = r.Revision
					got, err := to.Kubernetes.Get(ctx, prefix+"one", kubernetes.GetOptions{})
					if err != nil || got.KV == nil || got.KV.ModRevision != revision || got.Revision < revision {
						t.Errorf("get after %d: %+v, %v, want revision %d", n, got, err, revision)
						return
					}
					if n%10 != 0 {
						continue
					}
					list, err := to.Kubernetes.List(ctx, prefix, kubernetes.ListOptions{})
					if err != nil || list.Revision < revision || len(list.Kvs) != 1 || list.Kvs[0].ModRevision != revision {
						t.Errorf("list after %d: %+v, %v, want revision %d", n, list, err, revision)
					}
					if none, err := to.Kubernetes.Get(ctx, prefix+"none", kubernetes.GetOptions{}); err != nil || none.Revision < revision {
						t.Errorf("get nothing after %d: %+v, %v, want revision %d", n, none, err, revision)
					}
				}
			})
		}
		work.Wait()
	})
}

// A list and the watch from its revision on have every key once, whoever writes meanwhile: no revision
// becomes visible after a later one.
func TestDatabaseListAndWatchMissNothing(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		a, _ := db.serve(t, Options{})
		b, _ := db.serve(t, Options{})
		listAndWatch(t, []*kubernetes.Client{a, b}, func(ctx context.Context, n int, key string, value []byte) error {
			return put(ctx, []*kubernetes.Client{a, b}[n%2], key, value)
		})
	})
}

func put(ctx context.Context, c *kubernetes.Client, key string, value []byte) error {
	r, err := c.Kubernetes.OptimisticPut(ctx, key, value, 0, kubernetes.PutOptions{})
	if err == nil && !r.Succeeded {
		err = fmt.Errorf("%s exists", key)
	}
	return err
}

// listAndWatch begins lists and watches while write creates keys.
func listAndWatch(t *testing.T, clients []*kubernetes.Client, write func(ctx context.Context, n int, key string, value []byte) error) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const writers, writes, watchers = 16, 150, 12
	var writing, watching sync.WaitGroup
	var written atomic.Int64
	for i := range writers {
		writing.Go(func() {
			for n := range writes {
				written.Add(1)
				if err := write(ctx, i, fmt.Sprintf("/many/%d-%d", i, n), make([]byte, rand.IntN(4000))); err != nil {
					t.Errorf("put: %v", err)
				}
			}
		})
	}
	for i := range watchers {
		watching.Go(func() {
			c := clients[i%len(clients)]
			for begin := i * writers * writes / watchers; written.Load() < int64(begin); { // all along the way
				time.Sleep(time.Millisecond)
			}
			list, err := c.Kubernetes.List(ctx, "/many/", kubernetes.ListOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			seen := map[string]int{}
			for _, kv := range list.Kvs {
				seen[string(kv.Key)]++
			}
			for r := range c.Watch(ctx, "/many/", clientv3.WithPrefix(), clientv3.WithRev(list.Revision+1)) {
				if err := r.Err(); err != nil {
					t.Error(err)
					return
				}
				for _, e := range r.Events {
					seen[string(e.Kv.Key)]++
				}
				if len(seen) == writers*writes {
					break
				}
			}
			if len(seen) != writers*writes {
				t.Errorf("the list at %d and its watch have %d of %d keys", list.Revision, len(seen), writers*writes)
			}
			for key, n := range seen {
				if n != 1 {
					t.Errorf("%s came %d times", key, n)
				}
			}
		})
	}
	writing.Wait()
	watching.Wait()
}

// A key that was deleted can be created again, and the answer has the revision of its row, also while others
// write.
func TestDatabaseCreatesAgain(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		a, _ := db.serve(t, Options{})
		b, _ := db.serve(t, Options{})
		ctx := t.Context()
		clients := []*kubernetes.Client{a, b}
		var work sync.WaitGroup
		for i := range 16 {
			work.Go(func() {
				creator, deleter := clients[i%2], clients[i/2%2]
				key := fmt.Sprintf("/again/%d", i)
				for range 30 {
					r, err := creator.Kubernetes.OptimisticPut(ctx, key, []byte("x"), 0, kubernetes.PutOptions{})
					if err != nil || !r.Succeeded {
						t.Errorf("create: %+v, %v", r, err)
						return
					}
					gone, err := deleter.Kubernetes.OptimisticDelete(ctx, key, r.Revision, kubernetes.DeleteOptions{})
					if err != nil || !gone.Succeeded {
						t.Errorf("delete: %+v, %v", gone, err)
						return
					}
				}
			})
		}
		work.Wait()
	})
}

// PostgreSQL tells a server of another one's rows, without being asked at an interval.
func TestDatabaseTellsOfRows(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		a := db.started(t)
		follow := a.external.kind.follow
		if follow == nil {
			t.Skip("of PostgreSQL")
		}
		dsn, release, err := a.external.kind.prepare(t.Context(), a.external.rest, tls.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		told := make(chan int64, 100)
		ctx, cancel := context.WithCancel(t.Context())
		var work sync.WaitGroup
		defer work.Wait()
		defer cancel()
		work.Go(func() {
			follow(ctx, dsn, func(revision int64) { told <- revision }, func(err error) { t.Error(err) })
		})
		eventually.Receive(t, "the first", told) // it follows from now on
		for n := range 5 {
			revision, err := a.Create(t.Context(), fmt.Sprintf("/told/%d", n), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for got := int64(0); got != revision; {
				got = eventually.Receive(t, "a revision", told)
			}
		}
	})
}

// Of the servers that start with an empty database, one writes the first objects.
func TestDatabaseCreatesAllOrNothing(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		const prefix, except = "/registry/", "/registry/karve/cluster"
		servers := []*Backend{db.open(t), db.open(t), db.open(t)}
		for _, b := range servers {
			if err := b.Start(t.Context()); err != nil { // which creates kine's key
				t.Fatal(err)
			}
			if empty, err := b.Empty(t.Context(), prefix, except); !empty || err != nil {
				t.Errorf("empty: %v, %v, want true", empty, err)
			}
		}
		if _, err := servers[0].Create(t.Context(), except, nil, 0); err != nil {
			t.Fatal(err)
		}
		for other, want := range map[string]bool{except: true, "": false} {
			if empty, err := servers[1].Empty(t.Context(), prefix, other); empty != want || err != nil {
				t.Errorf("empty but for %q: %v, %v, want %v", other, empty, err, want)
			}
		}
		objects := func(server int) iter.Seq2[string, []byte] {
			all := map[string][]byte{}
			for n := range 200 {
				all[fmt.Sprintf("%s%d", prefix, n)] = fmt.Append(nil, server)
			}
			return maps.All(all)
		}
		var work sync.WaitGroup
		for i, b := range servers {
			work.Go(func() {
				if err := b.CreateAll(t.Context(), prefix, except, objects(i)); err != nil {
					t.Error(err)
				}
			})
		}
		work.Wait()
		_, kvs, err := servers[0].List(t.Context(), prefix, "/registry0", 0, 0, false)
		if err != nil || len(kvs) != 202 {
			t.Fatalf("%d keys, %v, want 200, kine's and the exception", len(kvs), err)
		}
		var owners []string
		for _, kv := range kvs {
			if len(kv.Value) == 1 {
				owners = append(owners, string(kv.Value))
			}
		}
		slices.Sort(owners)
		if owners = slices.Compact(owners); len(owners) != 1 {
			t.Errorf("objects of the servers %v, want those of one", owners)
		}
		if empty, err := servers[1].Empty(t.Context(), prefix, except); empty || err != nil {
			t.Errorf("empty: %v, %v, want false", empty, err)
		}
		if rev, err := servers[1].Create(t.Context(), prefix+"later", nil, 0); err != nil || rev == 0 {
			t.Errorf("a write after it: %d, %v", rev, err)
		}
	})
}

// A write that a database cannot store fails alone, and its outcome is certain.
func TestDatabaseAWriteThatCannotBeStoredFailsAlone(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		w := newWriter(t.Context(), db.open(t).writer.table)
		create := func(key string) *write { return &write{ctx: t.Context(), key: key, created: true} }
		first, bad, last := create("/first"), create("/bad\x00"+strings.Repeat("too long", 1000)), create("/last")
		commitOf(w, first, bad, last)
		for _, one := range []*write{first, bad, last} {
			got := eventually.Receive(t, one.key, one.answer)
			if failed := one == bad; outcomeOf(got.err) == unknown || failed != (got.err != nil) || failed != (got.revision == 0) {
				t.Errorf("%s: %+v, want that only /bad fails, and for certain", one.key, got)
			}
		}
	})
}

// A lease may be longer than kine's column has room for.
func TestDatabaseStoresLongLeases(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		b := db.open(t)
		if err := b.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Create(t.Context(), "/leased", nil, math.MaxInt32+1); err != nil {
			t.Fatal(err)
		}
		if _, kv, err := b.Get(t.Context(), "/leased", 0, false); err != nil || kv == nil || kv.Lease != math.MaxInt32 {
			t.Errorf("%+v, %v, want the longest lease", kv, err)
		}
	})
}
