package datastore

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// holdRow makes the row of /beat/a be only in memory, and returns its version.
func holdRow(t *testing.T, e *Engine) *version {
	t.Helper()
	v := e.snap.Load().head("/beat/a")
	put(t, e, "/beat/a", "one") // deferred
	put(t, e, "/other", "x")    // a commit, which replaces the row
	if v.place != held {
		t.Fatal("the row is not held")
	}
	return v
}

// A stop in the middle of a compaction writes what is held, but not what the compaction has removed: the
// tombstone may be gone.
func TestStopDuringCompactionBringsNothingBack(t *testing.T) {
	dir := t.TempDir()
	e, lock := openLocked(t, dir, relaxed(time.Hour))
	put(t, e, "/beat/a", "zero")
	holdRow(t, e)
	if _, err := e.Delete(t.Context(), DeleteRequest{Key: "/beat/a"}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 * sliceEvents {
		put(t, e, fmt.Sprint("/k/", i%7), "x")
	}
	commits := 0
	e.file.OnStep(func(step string) error {
		if step == "committed" {
			if commits++; commits == 2 { // the compaction's own, and the first slice that it deletes
				e.mu.Lock()
				e.closing = true
				e.mu.Unlock()
			}
		}
		return nil
	})
	e.garbage.last = time.Time{} // deletions are due
	if err := e.Compact(t.Context(), e.Revision(), false); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	e = openTest(t, dir, relaxed(time.Hour))
	wantSound(t, e)
	if kv := get(t, e, "/beat/a", 0); kv != nil {
		t.Errorf("a deleted key is back: %+v", *kv)
	}
}

// A reader that has read a row before it was replaced does not put the version into the cache,
// where it could be evicted.
func TestSlowReaderLeavesHeldVersions(t *testing.T) {
	dir := t.TempDir()
	opts := relaxed(time.Hour)
	opts.CacheBytes = 64 << 10
	e, lock := openLocked(t, dir, opts)
	first := put(t, e, "/beat/a", "zero")
	evict := func(with string) {
		for i := range 100 {
			put(t, e, fmt.Sprint("/large/", i), strings.Repeat(with, 2000))
		}
	}
	evict("x")
	v := e.snap.Load().head("/beat/a")
	value, err := e.file.Read(&v.Row)
	if err != nil {
		t.Fatal(err)
	}
	if v.value.Load() != nil {
		t.Fatal("the value is not evicted")
	}
	wantValue(t, e, "/beat/a", 0, "zero") // another reader is faster
	e.cache.addValue(holdRow(t, e), value)
	evict("y")
	wantValue(t, e, "/beat/a", first, "zero")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	e = openTest(t, dir, opts)
	wantSound(t, e)
	wantValue(t, e, "/beat/a", first, "zero")
}

// After a commit whose outcome is unknown, the memory may have the only copy of what it replaced.
func TestReplacedRowsAreHeldAfterUnknownOutcome(t *testing.T) {
	e := openTest(t, t.TempDir(), relaxed(time.Hour))
	first := put(t, e, "/beat/a", "zero")
	v := e.snap.Load().head("/beat/a")
	put(t, e, "/beat/a", "one")
	e.file.OnStep(func(step string) error {
		if step == "committed" {
			return errors.New("input/output error")
		}
		return nil
	})
	if _, err := e.Put(t.Context(), PutRequest{Key: "/other", Value: []byte("x")}); !errors.Is(err, ErrUnknownOutcome) {
		t.Fatalf("got %v, want %v", err, ErrUnknownOutcome)
	}
	if v.slot != slotNone {
		t.Error("the version is in the cache, which may evict it")
	}
	wantValue(t, e, "/beat/a", first, "zero")
}

// What compaction removes takes no memory, also if it was held.
func TestCompactedHeldVersionsAreFreed(t *testing.T) {
	e := openTest(t, t.TempDir(), relaxed(time.Hour))
	put(t, e, "/beat/a", "zero")
	v := holdRow(t, e)
	if err := e.Compact(t.Context(), e.Revision(), true); err != nil {
		t.Fatal(err)
	}
	if v.place != released || v.value.Load() != nil {
		t.Errorf("after the compaction: place %d, in memory %t", v.place, v.value.Load() != nil)
	}
	if len(e.held) != 0 || e.heldSize != 0 {
		t.Errorf("%d versions of %d bytes are held", len(e.held), e.heldSize)
	}
}

// A stop tries again in the space of the ballast, and says what prevented it from writing.
func TestStopWritesHeldVersions(t *testing.T) {
	for _, test := range []struct {
		fault error
		times int64
		want  error
	}{
		{syscall.ENOSPC, 1, nil},
		{syscall.ENOSPC, 2, ErrNoSpace},
		{sqlitefile.ErrBusy, 1, sqlitefile.ErrBusy},
	} {
		dir := t.TempDir()
		opts := relaxed(time.Hour)
		opts.BallastBytes = 1 << 20
		e, lock := openLocked(t, dir, opts)
		put(t, e, "/beat/a", "zero")
		holdRow(t, e)
		var commits atomic.Int64
		e.file.OnStep(func(step string) error {
			if step == "commit" && commits.Add(1) <= test.times {
				return test.fault
			}
			return nil
		})
		if err := e.Close(); !errors.Is(err, test.want) {
			t.Errorf("%v, %d times: Close: got %v, want %v", test.fault, test.times, err, test.want)
		}
		lock.Close()
		e = openTest(t, dir, opts)
		wantSound(t, e)
		if whole := e.CompactRevision() == 0; whole != (test.want == nil) {
			t.Errorf("%v, %d times: history is whole after the stop: %t", test.fault, test.times, whole)
		}
	}
}
