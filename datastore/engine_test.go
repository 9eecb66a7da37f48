package datastore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/eventually"
)

// openTest opens an engine in dir and closes it with the test.
func openTest(t testing.TB, dir string, opts Options) *Engine {
	t.Helper()
	e, lock := openLocked(t, dir, opts)
	t.Cleanup(func() {
		if err := e.Close(); err != nil && !errors.Is(err, ErrUnknownOutcome) {
			t.Errorf("close: %v", err)
		}
		lock.Close()
	})
	return e
}

func openLocked(t testing.TB, dir string, opts Options) (*Engine, *directory.Lock) {
	t.Helper()
	if opts.BallastBytes == 0 {
		opts.BallastBytes = -1
	}
	if dir == "" {
		dir = t.TempDir()
	}
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	e, err := OpenEngine(lock, opts)
	if err != nil {
		lock.Close()
		t.Fatal(err)
	}
	return e, lock
}

// tryOpen returns the error of a start.
func tryOpen(t testing.TB, dir string) error {
	t.Helper()
	lock, err := directory.Acquire(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	e, err := OpenEngine(lock, Options{BallastBytes: -1})
	if err != nil {
		return err
	}
	return e.Close()
}

func put(t testing.TB, e *Engine, key, value string) int64 {
	t.Helper()
	resp, err := e.Put(t.Context(), PutRequest{Key: key, Value: []byte(value)})
	if err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
	return resp.Revision
}

func get(t testing.TB, e *Engine, key string, revision int64) *KeyValue {
	t.Helper()
	resp, err := e.Range(t.Context(), RangeRequest{Key: key, Revision: revision})
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	if len(resp.KVs) == 0 {
		return nil
	}
	return &resp.KVs[0]
}

func wantValue(t testing.TB, e *Engine, key string, revision int64, want string) {
	t.Helper()
	kv := get(t, e, key, revision)
	if kv == nil || string(kv.Value) != want {
		t.Errorf("%s at %d: got %v, want value %q", key, revision, kv, want)
	}
}

// fill puts n keys with values of 1 KB and returns their names.
func fill(b testing.TB, e *Engine, n int) []string {
	names := make([]string, n)
	for begin := 0; begin < n; begin += 500 {
		var ops []Op
		for i := begin; i < min(n, begin+500); i++ {
			names[i] = fmt.Sprintf("/registry/pods/default/%06d", i)
			ops = append(ops, Op{Put: &PutRequest{Key: names[i], Value: make([]byte, 1024)}})
		}
		if _, err := e.Txn(context.Background(), TxnRequest{Then: ops}); err != nil {
			b.Fatal(err)
		}
	}
	return names
}

// crash stops the engine as a kill does: it leaves the WAL, and no mark of a clean stop.
func crash(t testing.TB, e *Engine) {
	t.Helper()
	e.fail(errors.New("killed by the test"))
	e.wakeCommitter()
	<-e.stopped
	saved := map[string][]byte{}
	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(e.path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		saved[suffix] = b
	}
	e.Close()
	for suffix, b := range saved {
		if err := os.WriteFile(e.path+suffix, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	os.Remove(e.path + "-shm")
}

func TestCloseEndsWritesAndWatches(t *testing.T) {
	e := openTest(t, t.TempDir(), Options{})
	w, err := e.Watch(WatchRequest{Key: "/a"})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := w.Next(context.Background())
		ended <- err
	}()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := eventually.Receive(t, "the watch ends", ended); !errors.Is(err, ErrClosed) {
		t.Errorf("watch: %v, want %v", err, ErrClosed)
	}
	if _, err := e.Put(t.Context(), PutRequest{Key: "/a"}); !errors.Is(err, ErrClosed) {
		t.Errorf("put: %v, want %v", err, ErrClosed)
	}
	if _, err := e.Watch(WatchRequest{Key: "/a"}); !errors.Is(err, ErrClosed) {
		t.Errorf("watch: %v, want %v", err, ErrClosed)
	}
}

// The size of the WAL stays bounded although it always has readers.
func TestWALIsBoundedUnderReaders(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("writes 40 MB durably")
	}
	e := openTest(t, t.TempDir(), Options{CacheBytes: 1})
	stop := make(chan struct{})
	var readers, writers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := e.Range(t.Context(), RangeRequest{Key: "/", End: "0"}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var largest atomic.Int64
	for c := range 8 {
		writers.Go(func() {
			for i := range 500 {
				put(t, e, fmt.Sprintf("/%d/%d", c, i%10), strings.Repeat("x", 10000))
				if n := e.Stats().WALBytes; n > largest.Load() {
					largest.Store(n)
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	if got := largest.Load(); got > 16<<20 {
		t.Errorf("the WAL was %d bytes, the limit is %d", got, 16<<20)
	}
	t.Logf("the log was at most %d KiB after 40 MB of writes", largest.Load()>>10)
}

// A list reads the values that are not in memory in the order of the file, and returns each with its key.
func TestListReadsManyValues(t *testing.T) {
	e := openTest(t, t.TempDir(), Options{CacheBytes: 1})
	const keys = 2*valuesAtOnce + 10
	want := map[string]string{}
	for round := range 2 {
		for i := range keys {
			at := i * 7 % keys // the file has another order than the keys
			if round == 1 && at%3 != 0 {
				continue
			}
			key := fmt.Sprintf("/k/%04d", at)
			want[key] = fmt.Sprintf("%d of round %d", at, round)
			put(t, e, key, want[key])
		}
	}
	all := RangeRequest{Key: "/k/", End: "/k0"}
	got, err := e.Range(t.Context(), all)
	if err != nil || len(got.KVs) != keys {
		t.Fatalf("got %d keys and %v, want %d", len(got.KVs), err, keys)
	}
	for i, kv := range got.KVs {
		if key := fmt.Sprintf("/k/%04d", i); kv.Key != key || string(kv.Value) != want[key] {
			t.Errorf("key %d: got %s %q, want %s %q", i, kv.Key, kv.Value, key, want[key])
		}
	}
}

func glob(t testing.TB, dir, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	return names
}
