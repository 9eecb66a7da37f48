package datastore

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// A compaction that frees few pages makes no checkpoint: each writes again every page that has
// changed since the last one.
func TestSmallCompactionsMakeNoCheckpoint(t *testing.T) {
	e := openTest(t, t.TempDir(), Options{})
	var checkpoints atomic.Int64
	e.file.OnStep(func(step string) error {
		if step == "checkpoint" {
			checkpoints.Add(1)
		}
		return nil
	})
	for round := range 10 {
		for i := range 5 {
			put(t, e, "/beat", fmt.Sprint(round, i))
		}
		if err := e.Compact(t.Context(), e.Revision(), true); err != nil {
			t.Fatal(err)
		}
	}
	put(t, e, "/beat", "last") // the committer was idle before, or writes this before anything else
	if got := checkpoints.Load(); got != 0 {
		t.Errorf("%d checkpoints in 10 small compactions, want none", got)
	}
}

// What is on the disk after a failed sync is not known, whatever the reason. So ENOSPC from a sync is
// no full disk, after which the engine would go on. TestDiskFaults shows the same of SQLite's own syncs.
func TestFailedSyncIsNoFullDisk(t *testing.T) {
	e := openTest(t, t.TempDir(), Options{Durability: Relaxed})
	e.file.OnStep(func(step string) error {
		if step == "sync" {
			return syscall.ENOSPC
		}
		return nil
	})
	_, err := e.Put(t.Context(), PutRequest{Key: "/a", Value: []byte("x")})
	if !errors.Is(err, ErrUnknownOutcome) || errors.Is(err, ErrNoSpace) {
		t.Errorf("got %v, want %v", err, ErrUnknownOutcome)
	}
	if e.Err() == nil {
		t.Error("the engine still accepts writes")
	}
}

// The last checkpoint is often the first one that meets a bad disk. SQLite's error names no file.
func TestFailedCheckpointAtCloseNamesFile(t *testing.T) {
	dir := t.TempDir()
	e, lock := openLocked(t, dir, Options{})
	put(t, e, "/a", "durable")
	e.file.OnStep(func(step string) error {
		if step == "checkpoint" {
			return syscall.EIO
		}
		return nil
	})
	if err := e.Close(); !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), e.Path()) {
		t.Errorf("close: %v, want %v with the name of %s", err, syscall.EIO, e.Path())
	}
	lock.Close()
	e = openTest(t, dir, Options{})
	wantValue(t, e, "/a", 0, "durable")
}
