package datastore

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/internal/eventually"
)

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

// The file has one row of a key whose updates are deferred, and is sound all the time. Readers see the
// whole history, and a start after a stop in order does too. A kill leaves the newest row that was written.
func TestDeferredUpdatesReplaceEachOther(t *testing.T) {
	for _, stop := range []string{"stop", "kill"} {
		t.Run(stop, func(t *testing.T) {
			dir := t.TempDir()
			opts := relaxed(time.Hour)
			opts.CacheBytes = 64 << 10
			e, lock := openLocked(t, dir, opts)
			first := put(t, e, "/beat/a", "0")
			put(t, e, "/beat/b", "0")
			others, beats := int64(0), int64(1)
			var revisions []int64
			for i := range 60 {
				revisions = append(revisions, put(t, e, "/beat/a", fmt.Sprint(i)))
				put(t, e, "/beat/b", fmt.Sprint(i))
				beats++
				switch {
				case i == 40: // history goes on from here
					if err := e.Compact(t.Context(), revisions[30], true); err != nil {
						t.Fatal(err)
					}
				case i%3 == 2:
					put(t, e, fmt.Sprint("/other/", i), "x")
					others++
				default:
					continue
				}
				if got := fileRows(t, e); got != others+2 {
					t.Fatalf("after heartbeat %d the file has %d rows, want %d and one of each heartbeat", i, got, others)
				}
				wantSound(t, e)
			}
			for i := range 100 { // nothing that is only in memory may be evicted
				put(t, e, fmt.Sprint("/large/", i), strings.Repeat("x", 2000))
			}
			for i, revision := range revisions[30:] {
				wantValue(t, e, "/beat/a", revision, fmt.Sprint(i+30))
			}
			put(t, e, "/beat/a", "last")
			if stop == "kill" {
				crash(t, e)
			} else if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			lock.Close()
			e = openTest(t, dir, relaxed(time.Hour))
			wantSound(t, e)
			if stop == "kill" {
				wantValue(t, e, "/beat/a", 0, "59")
				return
			}
			wantValue(t, e, "/beat/a", 0, "last")
			for i, revision := range revisions[30:] {
				wantValue(t, e, "/beat/a", revision, fmt.Sprint(i+30))
			}
			kv := get(t, e, "/beat/a", 0)
			if kv.CreateRevision != first || kv.Version != beats+1 {
				t.Errorf("after a start it is version %d, created in revision %d, want %d and %d", kv.Version, kv.CreateRevision, beats+1, first)
			}
		})
	}
}

// Versions that are only in memory have a bound. Beyond it, everything is written.
func TestHeldVersionsAreBounded(t *testing.T) {
	opts := relaxed(time.Hour)
	opts.CacheBytes = 0 // the default, so that it does not evict
	e := openTest(t, t.TempDir(), opts)
	put(t, e, "/beat/a", "0")
	value := strings.Repeat("x", heldBytes/20)
	for i := range 50 {
		put(t, e, "/beat/a", value+fmt.Sprint(i))
		put(t, e, "/other", "x")
	}
	wantSound(t, e)
	if got := fileRows(t, e); got < 50+20 {
		t.Errorf("the file has %d rows, want those beyond the bound too", got)
	}
	if err := e.Compact(t.Context(), e.Revision(), true); err != nil {
		t.Fatal(err)
	}
	if got := fileRows(t, e); got != 2 {
		t.Errorf("%d rows after a compaction, want 2", got)
	}
	put(t, e, "/beat/a", "1")
	put(t, e, "/other", "y")
	if got := fileRows(t, e); got != 3 {
		t.Errorf("%d rows after the next heartbeat, want 3", got)
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
