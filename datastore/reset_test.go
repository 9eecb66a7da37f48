package datastore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// stateAt returns every key and value of the engine at a revision; 0 means the newest.
func stateAt(t testing.TB, e *Engine, revision int64) map[string]string {
	t.Helper()
	resp, err := e.Range(context.Background(), RangeRequest{Key: "\x00", End: allKeys, Revision: revision})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, kv := range resp.KVs {
		out[kv.Key] = string(kv.Value)
	}
	return out
}

func stateOf(c *Dump) map[string]string {
	out := map[string]string{}
	c.Each(func(key string, value []byte) bool { out[key] = string(value); return true })
	return out
}

func contentsOf(t testing.TB, e *Engine) *Dump {
	t.Helper()
	c, err := e.Dump(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func reset(t testing.TB, e *Engine, to *Dump, opts ResetOptions) *ResetResult {
	t.Helper()
	r, err := e.Reset(context.Background(), to, opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// After a random history, a reset gives every key its former value. Watchers see exactly the keys
// that differed, each change with a revision of its own. If nothing differed, they see nothing. The
// contents may come from the engine itself or from a file.
func TestResetGoesBack(t *testing.T) {
	t.Parallel()
	for _, mode := range []Durability{Full, Relaxed, Memory} {
		t.Run(mode.String(), func(t *testing.T) {
			for seed := range uint64(8) {
				resetsOf(t, mode, seed)
			}
		})
	}
}

func resetsOf(t *testing.T, mode Durability, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	// Values that are not in the cache are on the disk only.
	e := openTest(t, t.TempDir(), Options{Durability: mode, CacheBytes: 2000})
	defer e.Close()
	lease, err := e.Grant(t.Context(), 0, 3600)
	if err != nil {
		t.Fatal(err)
	}
	act := func() {
		for range random.IntN(80) {
			key := fmt.Sprintf("/%d", random.IntN(40))
			if random.IntN(3) == 0 {
				if _, err := e.Delete(t.Context(), DeleteRequest{Key: key}); err != nil {
					t.Fatal(err)
				}
				continue
			}
			req := PutRequest{Key: key, Value: []byte(strconv.Itoa(random.IntN(4)) + strings.Repeat("x", random.IntN(300)))}
			if random.IntN(5) == 0 {
				req.Lease = lease.ID
			}
			if _, err := e.Put(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
	}
	act()
	c := contentsOf(t, e)
	want := stateAt(t, e, 0)
	if got := stateOf(c); !maps.Equal(got, want) {
		t.Fatalf("seed %d: the contents are %v, want %v", seed, got, want)
	}
	file := filepath.Join(t.TempDir(), "contents")
	if _, err := c.WriteFile(file); err != nil {
		t.Fatal(err)
	}
	read, err := ReadDump(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	if read.Revision() != c.Revision() || !maps.Equal(stateOf(read), want) {
		t.Fatalf("seed %d: a file of the contents has revision %d and other keys, want %d", seed, read.Revision(), c.Revision())
	}
	for round := range 6 {
		if random.IntN(3) > 0 {
			act()
		}
		if random.IntN(4) == 0 {
			if err := e.Compact(t.Context(), e.Revision(), true); err != nil && !errors.Is(err, ErrCompacted) {
				t.Fatal(err)
			}
		}
		before, from := stateAt(t, e, 0), e.Revision()
		w := watch(t, e, WatchRequest{Key: "\x00", End: allKeys, StartRevision: from + 1})
		to := c
		if round%2 == 1 {
			to = read
		}
		differs, err := e.Differs(to, ResetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		commits := e.Stats().Commits
		r := reset(t, e, to, ResetOptions{})
		if n := e.Stats().Commits - commits; n > 1 {
			t.Errorf("seed %d: a reset was %d commits, want one: it is seen at once, and a kill leaves all of it or nothing", seed, n)
		}
		if got := stateAt(t, e, 0); !maps.Equal(got, want) {
			t.Fatalf("seed %d: after a reset %v, want %v", seed, got, want)
		}
		if fmt.Sprint(*differs) != fmt.Sprint(r.Difference) {
			t.Errorf("seed %d: a reset changed %v, want %v", seed, r.Difference, *differs)
		}
		if e.Revision() != from+int64(r.Len()) || r.Revision != e.Revision() {
			t.Errorf("seed %d: %d changes from revision %d on led to %d (answered: %d)", seed, r.Len(), from, e.Revision(), r.Revision)
		}
		wantEvents(t, w, before, want, from, r.Len())
		w.Close()
		if again := reset(t, e, to, ResetOptions{}); again.Len() > 0 || again.Revision != r.Revision {
			t.Errorf("seed %d: a second reset changed %v", seed, again.Difference)
		}
	}
}

// While a datastore is compared, compaction may delete a row of the state that is read.
func TestDiffersDuringCompaction(t *testing.T) {
	e := openTest(t, t.TempDir(), Options{CacheBytes: 1})
	put(t, e, "/a", "then")
	put(t, e, "/b", "then")
	file := filepath.Join(t.TempDir(), "contents")
	if _, err := contentsOf(t, e).WriteFile(file); err != nil {
		t.Fatal(err)
	}
	to, err := ReadDump(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	put(t, e, "/b", "compacted")
	compacted := 0
	differs, err := e.Differs(to, ResetOptions{Keep: func(key string, _ bool) bool {
		if key == "/a" && compacted == 0 {
			compacted++
			put(t, e, "/b", "then")
			if err := e.Compact(t.Context(), e.Revision(), true); err != nil {
				t.Error(err)
			}
		}
		return false
	}})
	if err != nil || differs.Len() != 0 {
		t.Errorf("got %+v, %v, want the newest state, which is the same", differs, err)
	}
}

// wantEvents reads n events and checks that they lead from one state to the other.
func wantEvents(t *testing.T, w *Watcher, before, after map[string]string, revision int64, n int) {
	t.Helper()
	state := maps.Clone(before)
	seen := map[string]bool{}
	for got := 0; got < n; {
		for _, event := range next(t, w).Events {
			got++
			revision++
			if event.KV.ModRevision != revision {
				t.Errorf("an event of %s has revision %d, want %d: each its own", event.KV.Key, event.KV.ModRevision, revision)
			}
			if seen[event.KV.Key] {
				t.Errorf("two events of %s", event.KV.Key)
			}
			seen[event.KV.Key] = true
			if event.Type == EventDelete {
				delete(state, event.KV.Key)
			} else {
				state[event.KV.Key] = string(event.KV.Value)
			}
		}
	}
	if !maps.Equal(state, after) {
		t.Errorf("by its events the reset led to %v, want %v", state, after)
	}
}

// A reset is atomic while other clients write. At its revision there are exactly the wanted
// contents, the keys to keep are unchanged, and no reader sees a part of the reset.
func TestResetBesideWriters(t *testing.T) {
	e := openTest(t, t.TempDir(), Options{})
	defer e.Close()
	for i := range 200 {
		put(t, e, fmt.Sprintf("/a/%03d", i), "then")
	}
	c := contentsOf(t, e)
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	var kept sync.Map
	for n := range 4 {
		clients.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if _, err := e.Put(context.Background(), PutRequest{Key: fmt.Sprintf("/a/%03d", (i*7+n)%300), Value: []byte("now")}); err != nil {
					t.Error(err)
				}
				key := fmt.Sprintf("/kept/%d", n)
				kept.Store(key, strconv.Itoa(i))
				if _, err := e.Put(context.Background(), PutRequest{Key: key, Value: []byte(strconv.Itoa(i))}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	opts := ResetOptions{Keep: func(key string, _ bool) bool { return strings.HasPrefix(key, "/kept/") }}
	want := stateOf(c)
	for range 30 {
		time.Sleep(2 * time.Millisecond)
		r := reset(t, e, c, opts)
		got := stateAt(t, e, r.Revision)
		maps.DeleteFunc(got, func(key, _ string) bool { return opts.Keep(key, true) })
		if !maps.Equal(got, want) {
			t.Fatalf("at the revision of a reset, %d, are %d keys that are not %d", r.Revision, len(got), len(want))
		}
	}
	cancel()
	clients.Wait()
	kept.Range(func(key, value any) bool {
		wantValue(t, e, key.(string), 0, value.(string))
		return true
	})
}

// If keys now belong to other objects, the reset deletes and creates them, the oldest object first.
func TestResetReplacesOtherObjects(t *testing.T) {
	e := openTest(t, t.TempDir(), Options{Durability: Memory})
	defer e.Close()
	put(t, e, "/owner", "1 a")
	put(t, e, "/owned", "1 a")
	put(t, e, "/same", "1 a")
	c := contentsOf(t, e)
	for _, key := range []string{"/owned", "/owner"} {
		if _, err := e.Delete(t.Context(), DeleteRequest{Key: key}); err != nil {
			t.Fatal(err)
		}
	}
	put(t, e, "/owner", "2 b")
	put(t, e, "/owned", "2 b")
	put(t, e, "/same", "1 b")
	w := watch(t, e, WatchRequest{Key: "\x00", End: allKeys, StartRevision: e.Revision() + 1})
	another := func(now, then []byte) bool { return now[0] != then[0] }
	r := reset(t, e, c, ResetOptions{Another: another})
	if got := fmt.Sprint(r.Difference); got != "{[] [/owned /owner /same] []}" {
		t.Errorf("the reset did %s", got)
	}
	var events []string
	for len(events) < 5 {
		for _, event := range next(t, w).Events {
			events = append(events, fmt.Sprintf("%d %s %v", event.Type, event.KV.Key, event.IsCreate()))
		}
	}
	want := []string{"1 /owner false", "1 /owned false", "0 /owner true", "0 /owned true", "0 /same false"}
	if !slices.Equal(events, want) {
		t.Errorf("events %q, want %q", events, want)
	}
	if kv := get(t, e, "/same", 0); kv.Version != 3 {
		t.Errorf("/same has version %d, want 3: it was updated", kv.Version)
	}
}

// A key whose lease has expired comes back with a lease of the same ID and TTL.
func TestResetOfLeases(t *testing.T) {
	dir := t.TempDir()
	e, lock := openLocked(t, dir, Options{})
	gone, err := e.Grant(t.Context(), 77, 3600)
	if err != nil {
		t.Fatal(err)
	}
	there, err := e.Grant(t.Context(), 78, 60)
	if err != nil {
		t.Fatal(err)
	}
	for key, id := range map[string]int64{"/gone": gone.ID, "/there": there.ID} {
		if _, err := e.Put(t.Context(), PutRequest{Key: key, Value: []byte("v"), Lease: id}); err != nil {
			t.Fatal(err)
		}
	}
	c := contentsOf(t, e)
	if err := e.Revoke(t.Context(), gone.ID); err != nil {
		t.Fatal(err)
	}
	put(t, e, "/there", "v") // without its lease, the key would stay for ever
	reset(t, e, c, ResetOptions{})
	check := func() {
		t.Helper()
		for id, want := range map[int64]string{77: "3600 [/gone]", 78: "60 [/there]"} {
			l, err := e.TimeToLive(t.Context(), id, true)
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(l.TTL, l.Keys); got != want {
				t.Errorf("lease %d: %s, want %s", id, got, want)
			}
		}
	}
	check()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	e, lock = openLocked(t, dir, Options{})
	defer lock.Close()
	defer e.Close()
	check()
	if v, err := backup.Verify(t.Context(), e.Source(), nil); err != nil || !v.OK {
		t.Errorf("%v %v", v, err)
	}
}

// A backup of an engine in memory can be opened like any other.
func TestBackupOfAnEngineInMemoryCanBeOpened(t *testing.T) {
	e := openTest(t, "", Options{Durability: Memory})
	defer e.Close()
	put(t, e, "/a", "1")
	put(t, e, "/b", "1")
	put(t, e, "/a", "2")
	if _, err := e.Delete(t.Context(), DeleteRequest{Key: "/b"}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, EngineFile)
	made, err := e.Backup(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	if made.Keys != 1 || made.Revision != e.Revision() {
		t.Errorf("%d keys at revision %d, want 1 at %d", made.Keys, made.Revision, e.Revision())
	}
	if v, err := backup.Verify(t.Context(), sqlitefile.ClosedFile(file), nil); err != nil || !v.OK {
		t.Errorf("%v %v", v, err)
	}
	least := backup.Above(e.Revision())
	again := openTest(t, dir, Options{})
	defer again.Close()
	if got, want := get(t, again, "/a", 0), get(t, e, "/a", 0); fmt.Sprint(*got) != fmt.Sprint(*want) {
		t.Errorf("%v, want %v", *got, *want)
	}
	if again.Revision() < least {
		t.Errorf("revision %d, want %d or more", again.Revision(), least)
	}
	if _, err := e.Backup(t.Context(), file); !errors.Is(err, backup.ErrExists) {
		t.Errorf("over a file that is there: %v, want %v", err, backup.ErrExists)
	}
}

// An engine in memory can start with contents, as another does with a file.
func TestEngineInMemoryStartsWithContents(t *testing.T) {
	e := openTest(t, t.TempDir(), Options{})
	defer e.Close()
	lease, err := e.Grant(t.Context(), 5, 3600)
	if err != nil {
		t.Fatal(err)
	}
	put(t, e, "/a", "1")
	if _, err := e.Put(t.Context(), PutRequest{Key: "/b", Value: []byte("1"), Lease: lease.ID}); err != nil {
		t.Fatal(err)
	}
	put(t, e, "/a", "2")
	fork := openTest(t, "", Options{Durability: Memory, Initial: contentsOf(t, e)})
	defer fork.Close()
	for _, key := range []string{"/a", "/b"} {
		if got, want := get(t, fork, key, 0), get(t, e, key, 0); fmt.Sprint(*got) != fmt.Sprint(*want) {
			t.Errorf("%v, want %v", *got, *want)
		}
	}
	if fork.Revision() != e.Revision() || fork.Stats().LiveBytes != e.Stats().LiveBytes {
		t.Errorf("revision %d and %d bytes, want %d and %d", fork.Revision(), fork.Stats().LiveBytes, e.Revision(), e.Stats().LiveBytes)
	}
	w := watch(t, fork, WatchRequest{Key: "/a", StartRevision: fork.Revision() + 1})
	put(t, fork, "/a", "3")
	if events := next(t, w).Events; len(events) != 1 || string(events[0].KV.Value) != "3" {
		t.Errorf("%v, want one event", events)
	}
	if err := fork.Revoke(t.Context(), lease.ID); err != nil || get(t, fork, "/b", 0) != nil {
		t.Errorf("a revoked lease leaves its key: %v", err)
	}
	wantValue(t, e, "/a", 0, "2")
	if _, err := OpenEngine(nil, Options{Initial: contentsOf(t, e)}); err == nil {
		t.Error("an engine with a file took contents")
	}
}

// BenchmarkReset measures a reset of 40 of 1,000 keys, as after a small test, with each kind of
// contents.
func BenchmarkReset(b *testing.B) {
	e := openTest(b, b.TempDir(), Options{Durability: Relaxed})
	defer e.Close()
	value := strings.Repeat("x", 1500)
	for i := range 1000 {
		put(b, e, fmt.Sprintf("/%04d", i), value)
	}
	own := contentsOf(b, e)
	file := filepath.Join(b.TempDir(), "contents")
	if _, err := own.WriteFile(file); err != nil {
		b.Fatal(err)
	}
	read, err := ReadDump(context.Background(), file)
	if err != nil {
		b.Fatal(err)
	}
	for name, c := range map[string]*Dump{"own": own, "of a file": read} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				for i := range 20 {
					put(b, e, fmt.Sprintf("/%04d", i*40), "changed")
					put(b, e, fmt.Sprintf("/%04d", 2000+i), value)
				}
				b.StartTimer()
				if r := reset(b, e, c, ResetOptions{}); r.Len() != 40 {
					b.Fatalf("%d changes, want 40", r.Len())
				}
			}
		})
	}
}
