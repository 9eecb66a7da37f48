package datastore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/internal/eventually"
)

func TestCompactErrors(t *testing.T) {
	e := openTest(t, "", Options{Durability: Memory})
	put(t, e, "/a", "1")
	put(t, e, "/a", "2")
	if err := e.Compact(t.Context(), 4, false); !errors.Is(err, ErrFutureRevision) {
		t.Errorf("future: %v", err)
	}
	if err := e.Compact(t.Context(), 3, true); err != nil {
		t.Fatal(err)
	}
	for _, revision := range []int64{0, 2, 3} {
		if err := e.Compact(t.Context(), revision, false); !errors.Is(err, ErrCompacted) {
			t.Errorf("compact %d again: %v", revision, err)
		}
	}
	if _, err := e.Range(t.Context(), RangeRequest{Key: "/a", Revision: 2}); !errors.Is(err, ErrCompacted) {
		t.Errorf("read of a compacted revision: %v", err)
	}
	wantValue(t, e, "/a", 3, "2")
}

// After a compaction, memory and file hold little more than the live data. The next start completes
// a compaction that a kill interrupted.
func TestCompactionFreesSpace(t *testing.T) {
	dir := t.TempDir()
	e, lock := openLocked(t, dir, Options{})
	names := fill(t, e, 300)
	for range 30 {
		var ops []Op
		for _, name := range names {
			ops = append(ops, Op{Put: &PutRequest{Key: name, Value: incompressibleValue()}})
		}
		if _, err := e.Txn(t.Context(), TxnRequest{Then: ops}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.Delete(t.Context(), DeleteRequest{Key: names[0], End: names[100]}); err != nil {
		t.Fatal(err)
	}
	put(t, e, "/last", "v")
	if err := e.Compact(t.Context(), e.Revision(), false); err != nil {
		t.Fatal(err)
	}
	crash(t, e) // in the middle of the compaction
	lock.Close()
	e, lock = openLocked(t, dir, Options{})
	if err := e.WaitTidy(t.Context()); err != nil {
		t.Fatal(err)
	}
	live := int64(200 * 1100)
	eventually.Nil(t, "the file shrinks", func() error {
		info, err := os.Stat(e.path)
		if err == nil && info.Size() > 2*live+64<<10 {
			err = fmt.Errorf("it is %d bytes with %d bytes of live data", info.Size(), live)
		}
		return err
	})
	if s := e.Stats(); s.Keys != 201 || s.Events != 1 || s.CacheBytes > 2*live || e.snap.Load().dead.Len() != 0 {
		t.Errorf("after compaction: %+v and %d tombstones; want 201 keys, 1 event, none", s, e.snap.Load().dead.Len())
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	e = openTest(t, dir, Options{})
	if s, err := backup.ReadStats(t.Context(), e.Source()); err != nil || s.Rows != 201 {
		t.Errorf("%+v, %v; want 201 rows", s, err)
	}
}

func incompressibleValue() []byte { return []byte(fmt.Sprintf("%1024d", time.Now().UnixNano())) }

// A compaction of many revisions does not block writers. KARVE_COMPACT sets the number of
// revisions. The goal is a stall below 50 ms with 1,000,000.
func TestCompactionDoesNotStallWrites(t *testing.T) {
	revisions := 20000
	if n, err := strconv.Atoi(os.Getenv("KARVE_COMPACT")); err == nil {
		revisions = n
	} else if testing.Short() {
		t.Skip("writes 20,000 revisions")
	}
	e := openTest(t, "", Options{})
	var next atomic.Int64
	done := make(chan error, 64)
	for range 64 {
		go func() {
			for next.Add(1) <= int64(revisions) {
				i := next.Load()
				if _, err := e.Put(context.Background(), PutRequest{Key: fmt.Sprintf("/k/%d", i*7919%10000), Value: make([]byte, 200)}); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 64 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	compacted := make(chan error, 1)
	begin := time.Now()
	go func() { compacted <- e.Compact(context.Background(), e.Revision(), true) }()
	var longest time.Duration
	var wal int64
	for writes := 0; ; writes++ {
		one := time.Now()
		put(t, e, "/probe", "v")
		longest = max(longest, time.Since(one))
		wal = max(wal, e.Stats().WALBytes)
		select {
		case err := <-compacted:
			t.Logf("%d revisions compacted in %v, beside %d writes; the longest took %v; log at most %d KiB",
				revisions, time.Since(begin).Round(time.Millisecond), writes, longest, wal>>10)
			if err != nil {
				t.Error(err)
			}
			if wal > 16<<20 {
				t.Errorf("WAL: %d bytes, the limit is %d", wal, 16<<20)
			}
			// The machine may pause, too, so the exact figure is only logged.
			if longest > 500*time.Millisecond {
				t.Errorf("a write took %v", longest)
			}
			return
		default:
		}
	}
}

// In mode relaxed the rows of small compactions are deleted together: after an hour, when they are large, or when a
// caller waits for it.
func TestSmallCompactionsDeleteTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, mode := range []Durability{Full, Relaxed} {
			e, lock := openLocked(t, t.TempDir(), Options{Durability: mode})
			compact := func(value string) (rows int64) {
				t.Helper()
				for range 5 {
					put(t, e, "/k", value)
				}
				if err := e.Compact(t.Context(), e.Revision(), false); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				return fileRows(t, e)
			}
			want := func(what string, got, relaxed int64) {
				t.Helper()
				if mode == Full {
					relaxed = 1
				}
				if got != relaxed {
					t.Errorf("%v: %d rows after %s, want %d", mode, got, what, relaxed)
				}
			}
			want("a compaction", compact("x"), 5)
			want("another one", compact("x"), 10)
			time.Sleep(postponedTime)
			want("one an hour later, which deletes the earlier rows", compact("x"), 6)
			want("the next one", compact("x"), 11)
			if err := e.WaitTidy(t.Context()); err != nil {
				t.Error(err)
			}
			want("a wait", fileRows(t, e), 1)
			want("one of large rows", compact(strings.Repeat("x", postponedBytes/2)), 1)
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			lock.Close()
		}
	})
}

// A start deletes what an earlier process has postponed.
func TestPostponedDeletionsAreMadeUpForAtAStart(t *testing.T) {
	dir := t.TempDir()
	e, lock := openLocked(t, dir, Options{Durability: Relaxed})
	for range 5 {
		put(t, e, "/k", "x")
	}
	if err := e.Compact(t.Context(), e.Revision(), false); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	e = openTest(t, dir, Options{Durability: Relaxed})
	eventually.True(t, "one row is left", func() bool { return fileRows(t, e) == 1 })
}

func fileRows(t *testing.T, e *Engine) int64 {
	t.Helper()
	stats, err := backup.ReadStats(t.Context(), e.Source())
	if err != nil {
		t.Fatal(err)
	}
	return stats.Rows
}

func wantSound(t *testing.T, e *Engine) {
	t.Helper()
	v, err := backup.Verify(t.Context(), e.Source(), nil)
	if err == nil {
		err = v.Err()
	}
	if err != nil {
		t.Fatal(err)
	}
}
