package datastore

import (
	"sync"
	"testing"
)

// A start reports its progress, and only when there is progress.
func TestStartTellsItsProgress(t *testing.T) {
	dir := t.TempDir()
	e, lock := openLocked(t, dir, Options{})
	fill(t, e, 10000)
	crash(t, e)
	lock.Close()
	var mu sync.Mutex
	last := map[string]int64{}
	opts := Options{OnProgress: func(what string, done, total int64) {
		mu.Lock()
		defer mu.Unlock()
		if before, told := last[what]; told && done <= before {
			t.Errorf("%s: %d after %d", what, done, before)
		}
		last[what] = done
	}}
	e, lock = openLocked(t, dir, opts)
	defer lock.Close()
	defer e.Close()
	mu.Lock()
	defer mu.Unlock()
	if got := last["loading "+EngineFile]; got != 8192 {
		t.Errorf("told %v, want 8192 rows loaded", last)
	}
}
