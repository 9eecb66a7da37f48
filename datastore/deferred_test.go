package datastore

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/internal/eventually"
)

func fileRevision(t *testing.T, e *Engine) int64 {
	t.Helper()
	stats, err := backup.ReadStats(t.Context(), e.Source())
	if err != nil {
		t.Fatal(err)
	}
	return stats.Revision
}

func relaxed(interval time.Duration) Options {
	return Options{Durability: Relaxed, DeferredPrefix: "/beat/", deferredInterval: interval, syncInterval: time.Millisecond, CacheBytes: 1 << 20}
}

// Readers and watchers see deferred updates immediately. The engine writes them together with the
// next other write.
func TestDeferredUpdatesAreWrittenWithTheNextWrite(t *testing.T) {
	dir := t.TempDir()
	commits := 0
	opts := relaxed(time.Hour)
	opts.OnCommit = func(Commit) { commits++ }
	e, lock := openLocked(t, dir, opts)
	put(t, e, "/beat/a", "0") // a create is written immediately
	written := fileRevision(t, e)
	if written != e.Revision() {
		t.Fatalf("the first one is not written: %d of %d", written, e.Revision())
	}
	w := watch(t, e, WatchRequest{Key: "/", End: "0", StartRevision: e.Revision() + 1, PrevKV: true})
	before := commits
	for i := range 20 {
		revision := put(t, e, "/beat/a", fmt.Sprint(i))
		wantValue(t, e, "/beat/a", 0, fmt.Sprint(i))
		wantValue(t, e, "/beat/a", revision-1, fmt.Sprint(max(i-1, 0)))
		resp, err := w.Next(t.Context())
		if err != nil || len(resp.Events) != 1 || string(resp.Events[0].KV.Value) != fmt.Sprint(i) {
			t.Fatalf("heartbeat %d: the watch got %v, %v", i, resp, err)
		}
	}
	if got := fileRevision(t, e); got != written || commits != before {
		t.Errorf("heartbeats were written: %d revisions, %d commits, want none", got-written, commits-before)
	}
	put(t, e, "/other", "x")
	if got := fileRevision(t, e); got != e.Revision() || commits != before+1 {
		t.Errorf("after another write: revision %d of %d in %d commits, want all in 1", got, e.Revision(), commits-before)
	}
	put(t, e, "/beat/a", "last")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	e = openTest(t, dir, relaxed(time.Hour)) // this checks that every row is there
	wantValue(t, e, "/beat/a", 0, "last")
	if got := len(historyOf(t, e, "/beat/a")); got != 22 {
		t.Errorf("%d versions after a start, want 22", got)
	}
}

func historyOf(t *testing.T, e *Engine, key string) (values []string) {
	t.Helper()
	w := watch(t, e, WatchRequest{Key: key, StartRevision: 2})
	for w.RequestProgress(); ; w.RequestProgress() {
		resp, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.Events) == 0 {
			return values
		}
		for _, event := range resp.Events {
			values = append(values, string(event.KV.Value))
		}
	}
}

// Without other writes, the engine writes deferred updates after the interval.
func TestDeferredUpdatesAreWrittenInTheEnd(t *testing.T) {
	e := openTest(t, t.TempDir(), relaxed(50*time.Millisecond))
	put(t, e, "/beat/a", "0")
	revision := put(t, e, "/beat/a", "1")
	eventually.True(t, "the update is written", func() bool { return fileRevision(t, e) >= revision })
}

// Any change of such a key that is not a plain update is written immediately. In the other modes,
// so is every update.
func TestOnlyPlainUpdatesAreDeferred(t *testing.T) {
	e := openTest(t, t.TempDir(), relaxed(time.Hour))
	now := func(what string) {
		t.Helper()
		if got := fileRevision(t, e); got != e.Revision() {
			t.Errorf("%s: the file has revision %d, want %d", what, got, e.Revision())
		}
	}
	put(t, e, "/beat/a", "0")
	now("made")
	put(t, e, "/beaten", "0")
	put(t, e, "/beaten", "1")
	now("another key")
	if _, err := e.Delete(t.Context(), DeleteRequest{Key: "/beat/a"}); err != nil {
		t.Fatal(err)
	}
	now("deleted")
	put(t, e, "/beat/a", "2")
	now("made again")
	put(t, e, "/beat/a", "3")
	if fileRevision(t, e) == e.Revision() {
		t.Error("a heartbeat was written: this tests nothing")
	}
	if err := e.Compact(t.Context(), e.Revision(), false); err != nil {
		t.Fatal(err)
	}
	now("compacted")

	full := relaxed(time.Hour)
	full.Durability = Full
	e = openTest(t, t.TempDir(), full)
	put(t, e, "/beat/a", "0")
	put(t, e, "/beat/a", "1")
	now("mode full")
}

// A stop tries again in the space of the ballast, and says what prevented it from writing.
func TestStopWritesDeferredUpdates(t *testing.T) {
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
		put(t, e, "/beat/a", "one") // deferred
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
