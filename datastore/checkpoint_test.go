package datastore

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

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
