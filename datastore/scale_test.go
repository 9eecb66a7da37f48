package datastore

import (
	"context"
	"testing"
	"time"
)

// These tests check what lets the engine grow: causes that do not depend on the machine.

// Writes, starts and reads keep the values in memory within their budget.
func TestCacheStaysWithinItsBudget(t *testing.T) {
	const keys, budget = 5000, 1 << 20
	within := func(e *Engine, when string) {
		t.Helper()
		if s := e.Stats(); s.Keys != keys || s.LiveBytes < keys<<10 || s.CacheBytes > budget || s.CacheBytes < budget/2 {
			t.Errorf("%s: %d keys, %d bytes in memory of %d; want %d keys and at most %d", when, s.Keys, s.CacheBytes, s.LiveBytes, keys, budget)
		}
	}
	dir := t.TempDir()
	e, lock := openLocked(t, dir, Options{CacheBytes: budget})
	names := fill(t, e, keys)
	within(e, "after the writes")
	crash(t, e)
	lock.Close()
	e = openTest(t, dir, Options{CacheBytes: budget})
	within(e, "after a start")
	for i := 0; i < keys; i += 500 {
		resp, err := e.Range(t.Context(), RangeRequest{Key: names[i], End: PrefixEnd("/registry/"), Limit: 500})
		if err != nil || len(resp.KVs) != 500 {
			t.Fatalf("page from %s: %v", names[i], err)
		}
	}
	within(e, "after every page")
}

// A compaction and the writers take turns, so a batch never waits for two slices of the compaction.
func TestCompactionTakesTurnsWithWriters(t *testing.T) {
	e := openTest(t, "", Options{})
	var compacting bool // guarded by e.mu, as the others are
	var slices, most, backlog int64
	var waited *batch // when the last slice began
	e.file.OnStep(func(at string) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if at != "begin" || !compacting {
			return nil
		}
		if e.inflight != nil {
			waited = nil
			return nil
		}
		slices++
		if e.pending != nil && e.pending == waited {
			t.Error("a second slice began while a batch was waiting")
		}
		waited = e.pending
		now := e.backlog.Load()
		most = max(most, backlog-now)
		backlog = now
		return nil
	})
	for range 10 {
		fill(t, e, 2000)
	}
	e.mu.Lock()
	compacting = true
	e.mu.Unlock()
	compacted := make(chan error, 1)
	go func() { compacted <- e.Compact(context.Background(), e.Revision(), true) }()
	writes := 0
	for done := false; !done; writes++ {
		put(t, e, "/probe", "v")
		select {
		case err := <-compacted:
			if err != nil {
				t.Error(err)
			}
			done = true
		case <-time.After(0):
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	t.Logf("%d slices of at most %d rows, beside %d writes", slices, most, writes)
	if slices < 10 || writes < 10 {
		t.Errorf("%d slices beside %d writes: too few to tell", slices, writes)
	}
	if most > 2*sliceEvents {
		t.Errorf("a slice was of %d rows, want %d at most", most, 2*sliceEvents)
	}
}
