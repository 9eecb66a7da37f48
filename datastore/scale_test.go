package datastore

import "testing"

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
