package external

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/kine/inprocess"
)

// database is a real one, which scripts/external-databases has started.
type database struct {
	kind, control string
	endpoint      string // of a database of the test's own
}

// databases runs a test with each kind.
func databases(t *testing.T, test func(t *testing.T, db database)) {
	for _, kind := range []string{"postgres", "mysql"} {
		t.Run(kind, func(t *testing.T) {
			name := "KARVE_TEST_" + strings.ToUpper(kind)
			endpoint := os.Getenv(name)
			if endpoint == "" {
				t.Skipf("%s is not set: scripts/external-databases starts a database and sets it", name)
			}
			own := fmt.Sprintf("Test%d", time.Now().UnixNano())
			test(t, database{kind, os.Getenv(name + "_CONTROL"), endpoint + own})
		})
	}
}

func (db database) run(t *testing.T, verb string) {
	t.Helper()
	if out, err := exec.Command(db.control, verb).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", db.control, verb, err, out)
	}
}

// serve is a server of the database: its client, and how to end it.
func (db database) serve(t *testing.T, o Options) (*kubernetes.Client, func()) {
	t.Helper()
	e, err := Parse(db.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	b, err := e.Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	served, err := Serve(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	c, err := inprocess.NewClient(served.URL())
	if err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		c.Close()
		served.Close()
		b.Close()
	})
	t.Cleanup(stop)
	return c, stop
}

func TestDatabaseReadsAndWrites(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		c, stop := db.serve(t, Options{})
		ctx, k := t.Context(), c.Kubernetes
		put := func(key, value string, revision int64) kubernetes.PutResponse {
			t.Helper()
			r, err := k.OptimisticPut(ctx, key, []byte(value), revision, kubernetes.PutOptions{GetOnFailure: true})
			if err != nil {
				t.Fatalf("put %s: %v", key, err)
			}
			return r
		}
		made := put("/a/1", "1", 0)
		if again := put("/a/1", "2", 0); !made.Succeeded || again.Succeeded || string(again.KV.Value) != "1" {
			t.Errorf("create twice: %+v, %+v, want what is there", made, again)
		}
		updated := put("/a/1", "2", made.Revision)
		if stale := put("/a/1", "3", made.Revision); !updated.Succeeded || stale.Succeeded || string(stale.KV.Value) != "2" {
			t.Errorf("update twice: %+v, %+v, want what is there", updated, stale)
		}
		got, err := k.Get(ctx, "/a/1", kubernetes.GetOptions{})
		if err != nil || got.KV == nil || string(got.KV.Value) != "2" || got.KV.CreateRevision != made.Revision || got.KV.ModRevision != updated.Revision {
			t.Errorf("get: %+v, %v", got, err)
		}
		if old, err := k.Get(ctx, "/a/1", kubernetes.GetOptions{Revision: made.Revision}); err != nil || old.KV == nil || string(old.KV.Value) != "1" {
			t.Errorf("get at an old revision: %+v, %v, want 1", old, err)
		}
		for i := range 4 {
			put(fmt.Sprintf("/a/%d", i+2), "v", 0)
		}
		put("/b", "v", 0)
		for _, limit := range []int64{0, 2, 5} {
			stream, err := c.GetStream(ctx, "/a/", clientv3.WithPrefix(), clientv3.WithLimit(limit))
			if err != nil {
				t.Fatal(err)
			}
			want := int64(5)
			if limit > 0 {
				want = limit
			}
			all, err := clientv3.GetStreamToGetResponse(stream)
			if err != nil || int64(len(all.Kvs)) != want || all.Count != 5 || all.More != (want < 5) || all.Header.Revision == 0 {
				t.Errorf("chunks with limit %d: %v, %v, want %d of 5 keys", limit, all, err, want)
			}
		}
		page, err := k.List(ctx, "/a/", kubernetes.ListOptions{Limit: 2})
		if err != nil || len(page.Kvs) != 2 || page.Count != 5 {
			t.Fatalf("list: %+v, %v, want 2 of 5", page, err)
		}
		put("/a/9", "later", 0)
		rest, err := k.List(ctx, "/a/", kubernetes.ListOptions{Limit: 10, Revision: page.Revision, Continue: string(page.Kvs[1].Key) + "\x00"})
		if err != nil || len(rest.Kvs) != 3 {
			t.Errorf("the rest: %+v, %v, want 3", rest, err)
		}
		if n, err := k.Count(ctx, "/a/", kubernetes.CountOptions{}); n != 6 || err != nil {
			t.Errorf("count: %d, %v, want 6", n, err)
		}
		if none, err := k.OptimisticDelete(ctx, "/none", made.Revision, kubernetes.DeleteOptions{GetOnFailure: true}); err != nil || none.Succeeded || none.KV != nil {
			t.Errorf("delete no key: %+v, %v", none, err)
		}
		if wrong, err := k.OptimisticDelete(ctx, "/a/1", made.Revision, kubernetes.DeleteOptions{GetOnFailure: true}); err != nil || wrong.Succeeded || wrong.KV == nil {
			t.Errorf("delete an old revision: %+v, %v, want what is there", wrong, err)
		}
		if gone, err := k.OptimisticDelete(ctx, "/a/1", updated.Revision, kubernetes.DeleteOptions{}); err != nil || !gone.Succeeded {
			t.Errorf("delete: %+v, %v", gone, err)
		}
		if got, err := k.Get(ctx, "/a/1", kubernetes.GetOptions{}); err != nil || got.KV != nil {
			t.Errorf("get what is deleted: %+v, %v", got, err)
		}
		if back := put("/a/1", "again", 0); !back.Succeeded {
			t.Errorf("create what was deleted: %+v", back)
		}
		if _, err := k.List(ctx, "/", kubernetes.ListOptions{Revision: 1 << 40}); !errors.Is(err, rpctypes.ErrFutureRev) {
			t.Errorf("list the future: %v, want ErrFutureRev", err)
		}
		stop()
		c, _ = db.serve(t, Options{})
		if got, err := c.Kubernetes.Get(ctx, "/a/1", kubernetes.GetOptions{}); err != nil || got.KV == nil || string(got.KV.Value) != "again" {
			t.Errorf("after a restart: %+v, %v", got, err)
		}
	})
}

// A stop may come before the driver's goroutines have what they need.
func TestDatabaseStoppedAtOnce(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		for range 20 {
			_, stop := db.serve(t, Options{})
			stop()
		}
	})
}

// Servers that start together on a new database all open it: kine's driver makes its table without regard to others.
func TestDatabaseMadeByServersTogether(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		e, err := Parse(db.endpoint)
		if err != nil {
			t.Fatal(err)
		}
		const servers = 6
		opened := make(chan error, servers)
		for range servers {
			go func() {
				b, err := e.Open(t.Context(), Options{})
				if err == nil {
					b.Close()
				}
				opened <- err
			}()
		}
		var all []error
		for range servers {
			all = append(all, <-opened)
		}
		if err := errors.Join(all...); err != nil {
			t.Error(err)
		}
	})
}

func TestDatabaseLeases(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		c, _ := db.serve(t, Options{})
		lease, err := c.Grant(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Kubernetes.OptimisticPut(t.Context(), "/masterleases/1", []byte("v"), 0, kubernetes.PutOptions{LeaseID: lease.ID})
		if err != nil || !r.Succeeded {
			t.Fatalf("%+v, %v", r, err)
		}
		began := time.Now()
		for {
			got, err := c.Kubernetes.Get(t.Context(), "/masterleases/1", kubernetes.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got.KV == nil {
				break
			}
			if time.Since(began) > eventually.Limit {
				t.Fatalf("a key with a lease of 2 s is there after %v", eventually.Limit)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if took := time.Since(began); took < time.Second {
			t.Errorf("expired after %v, want 2 s", took)
		}
	})
}

// Of SQL stores kine keeps the newest thousand revisions.
func TestDatabaseCompacts(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		c, _ := db.serve(t, Options{})
		ctx := t.Context()
		r, err := c.Kubernetes.OptimisticPut(ctx, "/a", []byte("v"), 0, kubernetes.PutOptions{})
		first := r.Revision
		for i := 0; err == nil && i < compactRetain+200; i++ {
			r, err = c.Kubernetes.OptimisticPut(ctx, "/a", []byte("v"), r.Revision, kubernetes.PutOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Compact(ctx, r.Revision-compactRetain); err != nil {
			t.Fatalf("compact: %v", err)
		}
		if _, err := c.Kubernetes.Get(ctx, "/a", kubernetes.GetOptions{Revision: first}); !errors.Is(err, rpctypes.ErrCompacted) {
			t.Errorf("get at %d: %v, want ErrCompacted", first, err)
		}
		if w := <-c.Watch(ctx, "/a", clientv3.WithRev(first+1)); !errors.Is(w.Err(), rpctypes.ErrCompacted) || w.CompactRevision == 0 {
			t.Errorf("watch from %d: %+v, want ErrCompacted", first+1, w)
		}
		if _, err := c.Kubernetes.Get(ctx, "/a", kubernetes.GetOptions{Revision: r.Revision - 1}); err != nil {
			t.Errorf("get what is new: %v", err)
		}
		if _, err := c.Compact(ctx, first); !errors.Is(err, rpctypes.ErrCompacted) {
			t.Errorf("compact again: %v, want ErrCompacted", err)
		}
	})
}

// The key of the API server's compactor means something else to kine.
func TestDatabaseKeepsTheCompactorsKey(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		c, _ := db.serve(t, Options{})
		events := c.Watch(t.Context(), compactKey, clientv3.WithRev(1))
		put := func(version int64, value string) *clientv3.TxnResponse {
			resp, err := c.KV.Txn(t.Context()).If(clientv3.Compare(clientv3.Version(compactKey), "=", version)).
				Then(clientv3.OpPut(compactKey, value)).Else(clientv3.OpGet(compactKey)).Commit()
			if err != nil {
				t.Fatal(err)
			}
			return resp
		}
		if !put(0, "0").Succeeded || !put(1, "7").Succeeded {
			t.Fatal("the right version was refused")
		}
		refused := put(1, "8")
		if kv := refused.Responses[0].GetResponseRange().Kvs[0]; refused.Succeeded || kv.Version != 2 || string(kv.Value) != "7" {
			t.Errorf("got %+v, want version 2 with value 7", refused)
		}
		var last *clientv3.Event
		for n := 0; n < 2; {
			r := <-events
			n += len(r.Events)
			last = r.Events[len(r.Events)-1]
		}
		if string(last.Kv.Key) != compactKey || string(last.Kv.Value) != "7" || last.Kv.Version != 2 {
			t.Errorf("watched %+v, want version 2 with value 7", last.Kv)
		}
		if got, err := c.KV.Get(t.Context(), compactKey); err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "7" {
			t.Errorf("get: %+v, %v, want 7", got, err)
		}
	})
}

// The values before the events of a history are there, however old they are: the API server's watch cache ends without them.
func TestDatabaseHistoryHasTheValuesBefore(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		c, _ := db.serve(t, Options{})
		ctx := t.Context()
		put := func(key, value string, revision int64) int64 {
			r, err := c.Kubernetes.OptimisticPut(ctx, key, []byte(value), revision, kubernetes.PutOptions{})
			if err != nil || !r.Succeeded {
				t.Fatalf("put %s at %d: %+v, %v", key, revision, r, err)
			}
			return r.Revision
		}
		changed, deleted := put("/changed", "old", 0), put("/deleted", "old", 0)
		busy := put("/busy", "", 0)
		for range compactRetain + 10 {
			busy = put("/busy", "", busy)
		}
		if _, err := c.Compact(ctx, busy-compactRetain); err != nil {
			t.Fatal(err)
		}
		from := put("/changed", "new", changed)
		if r, err := c.Kubernetes.OptimisticDelete(ctx, "/deleted", deleted, kubernetes.DeleteOptions{}); err != nil || !r.Succeeded {
			t.Fatalf("delete: %+v, %v", r, err)
		}
		var events []*clientv3.Event
		for r := range c.Watch(ctx, "/", clientv3.WithPrefix(), clientv3.WithRev(from), clientv3.WithPrevKV()) {
			if r.Err() != nil {
				t.Fatal(r.Err())
			}
			if events = append(events, r.Events...); len(events) == 2 {
				break
			}
		}
		for _, e := range events {
			if e.PrevKv == nil || string(e.PrevKv.Value) != "old" {
				t.Errorf("%v, want the value before it", e)
			}
		}
	})
}

// Two servers share a database: whatever one writes the other's watch sees, once
// and in order, and progress never overtakes it. One of two writers wins.
func TestDatabaseOfTwoServers(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		a, _ := db.serve(t, Options{})
		b, _ := db.serve(t, Options{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		counter, err := a.Kubernetes.OptimisticPut(ctx, "/n", nil, 0, kubernetes.PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		watched := b.Watch(ctx, "/", clientv3.WithPrefix(), clientv3.WithRev(counter.Revision+1), clientv3.WithProgressNotify(), clientv3.WithPrevKV())

		const writers, writes = 4, 25
		var work sync.WaitGroup
		for i := range writers {
			c := []*kubernetes.Client{a, b}[i%2]
			work.Go(func() {
				revision := counter.Revision
				value := ""
				for done := 0; done < writes; {
					r, err := c.Kubernetes.OptimisticPut(ctx, "/n", []byte(value+"x"), revision, kubernetes.PutOptions{GetOnFailure: true})
					switch {
					case err != nil:
						t.Errorf("put: %v", err)
						return
					case r.Succeeded:
						revision, value = r.Revision, value+"x"
						done++
					case r.KV == nil:
						t.Errorf("a refused put without what is there")
						return
					default:
						revision, value = r.KV.ModRevision, string(r.KV.Value)
					}
					if _, err := c.Kubernetes.Get(ctx, "/", kubernetes.GetOptions{}); err != nil { // asks for progress
						t.Errorf("get: %v", err)
					}
				}
			})
		}
		ask, stopAsking := context.WithCancel(ctx)
		work.Go(func() {
			for ask.Err() == nil {
				b.RequestProgress(ctx)
				time.Sleep(10 * time.Millisecond)
			}
		})
		var last, told int64
		for n := 0; n < writers*writes; {
			r, open := <-watched
			if !open || r.Err() != nil {
				t.Fatalf("after %d events: %v", n, r.Err())
			}
			if len(r.Events) == 0 {
				told = max(told, r.Header.Revision)
			}
			for _, e := range r.Events {
				n++
				if e.Kv.ModRevision <= last || e.Kv.ModRevision <= told {
					t.Errorf("event of %d after one of %d and progress to %d", e.Kv.ModRevision, last, told)
				}
				if len(e.Kv.Value) != n {
					t.Errorf("event %d has value %d: lost or twice", n, len(e.Kv.Value))
				}
				last = e.Kv.ModRevision
			}
		}
		for began := time.Now(); told < last; {
			select {
			case r := <-watched:
				told = max(told, r.Header.Revision)
			case <-time.After(eventually.Limit):
				t.Fatalf("progress to %d %v after the last event, of %d", told, time.Since(began), last)
			}
		}
		stopAsking()
		work.Wait()
	})
}

// A database that is killed and comes back: what was acknowledged is there, calls
// in between are Unavailable and not conflicts, watches go on or say that they end.
func TestDatabaseGoesAwayAndComesBack(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		var mu sync.Mutex
		var states []string
		c, _ := db.serve(t, Options{State: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			states = append(states, fmt.Sprint(err))
		}})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		first, err := c.Kubernetes.OptimisticPut(ctx, "/a/0", []byte("v"), 0, kubernetes.PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		watched := c.Watch(ctx, "/a/", clientv3.WithPrefix(), clientv3.WithRev(first.Revision+1))
		acknowledged := map[string]bool{}
		var busy sync.WaitGroup
		stop, n := make(chan bool), 0
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				n++
				key := fmt.Sprintf("/a/%d", n)
				call, cancel := context.WithTimeout(ctx, 3*time.Second)
				r, err := c.Kubernetes.OptimisticPut(call, key, []byte("v"), 0, kubernetes.PutOptions{})
				cancel()
				switch {
				case err == nil && r.Succeeded:
					acknowledged[key] = true
				case err == nil:
					t.Errorf("%s: a conflict with nobody", key)
				case status.Code(err) != codes.Unavailable && !errors.Is(err, context.DeadlineExceeded):
					t.Errorf("%s: %v, want Unavailable", key, err)
				}
				if err != nil && strings.Contains(err.Error(), "ss/w0rd") {
					t.Errorf("a password in %v", err)
				}
			}
		})
		time.Sleep(300 * time.Millisecond)
		db.run(t, "kill")
		time.Sleep(2 * time.Second)
		if _, err := c.Kubernetes.List(ctx, "/a/", kubernetes.ListOptions{}); status.Code(err) != codes.Unavailable {
			t.Errorf("list without a database: %v, want Unavailable", err)
		}
		db.run(t, "start")
		time.Sleep(2 * time.Second)
		close(stop)
		busy.Wait()
		deadline := time.Now().Add(eventually.Limit)
		var back kubernetes.ListResponse
		for {
			back, err = c.Kubernetes.List(ctx, "/a/", kubernetes.ListOptions{})
			if err == nil {
				var marker kubernetes.PutResponse
				marker, err = c.Kubernetes.OptimisticPut(ctx, "/a/end", []byte("v"), 0, kubernetes.PutOptions{})
				if err == nil && marker.Succeeded {
					break
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("%v after the database is back: %v", eventually.Limit, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		there := map[string]bool{}
		for _, kv := range back.Kvs {
			there[string(kv.Key)] = true
		}
		for key := range acknowledged {
			if !there[key] {
				t.Errorf("%s was acknowledged and is not there", key)
			}
		}
		seen := map[string]int64{}
		for last := first.Revision; seen["/a/end"] == 0; {
			r, open := <-watched
			if ctx.Err() != nil {
				t.Fatalf("the watch has seen %d of %d, not the end", len(seen), len(there))
			}
			if !open || r.Canceled { // the client begins again where it was
				watched = c.Watch(ctx, "/a/", clientv3.WithPrefix(), clientv3.WithRev(last+1))
				continue
			}
			for _, e := range r.Events {
				seen[string(e.Kv.Key)], last = e.Kv.ModRevision, e.Kv.ModRevision
			}
		}
		for key := range there {
			if seen[key] == 0 && key != "/a/0" {
				t.Errorf("%s is there, and the watch has not seen it", key)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if len(states) < 2 || states[0] == "<nil>" || states[len(states)-1] != "<nil>" {
			t.Errorf("states %q, want away with the reason, and back", states)
		}
		t.Logf("%d of %d writes acknowledged; states: %q", len(acknowledged), n, states)
	})
}

// What waiting will not cure is told at once; what it may cure is not refused.
// Neither tells the password.
func TestDatabaseThatCannotBeUsed(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		open := func(endpoint string, o Options) error {
			t.Helper()
			e, err := Parse(endpoint)
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			b, err := e.Open(ctx, o)
			if err == nil {
				b.Close()
				t.Fatal("opened")
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("took %v: %v", took, err)
			}
			for _, secret := range []string{"w0rd", "wr0ng"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("a password in %v", err)
				}
			}
			t.Log(err)
			return err
		}
		wrong := strings.NewReplacer("p%40ss%2Fw0rd", "wr0ng", "p@ss/w0rd", "wr0ng").Replace(db.endpoint)
		if err := open(wrong, Options{}); !errors.Is(err, ErrRefused) {
			t.Errorf("a wrong password: %v, want ErrRefused", err)
		}
		if err := open(strings.Replace(db.endpoint, "karve:", "poor:", 1), Options{}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "cannot be made") && db.kind == "postgres" {
			t.Errorf("a database that may not be made: %v, want ErrRefused", err)
		}
		own, _ := os.Executable()
		if err := open(db.endpoint, Options{CAFile: own}); !errors.Is(err, ErrRefused) {
			t.Errorf("a CA file that is none: %v, want ErrRefused", err)
		}
		if ca := os.Getenv("KARVE_TEST_DATABASE_CA"); ca != "" {
			c, _ := db.serve(t, Options{CAFile: ca})
			if _, err := c.Kubernetes.Get(t.Context(), "/", kubernetes.GetOptions{}); err != nil {
				t.Errorf("with TLS: %v", err)
			}
		}
		db.run(t, "kill")
		defer db.run(t, "start")
		if err := open(db.endpoint, Options{}); errors.Is(err, ErrRefused) {
			t.Errorf("a database that is not there: %v, which waiting may cure", err)
		}
	})
}
