package datastore

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Deletes free space without a compaction by a client.
func TestDeletesMakeRoom(t *testing.T) {
	// The ballast has room for what a checkpoint copies: the WAL has 2 MiB, and 3 MiB in mode relaxed
	// (sqlitefile.File.Checkpoint).
	t.Run("tmpfs", func(t *testing.T) { deletesMakeRoom(t, mount(t, "16m"), Options{BallastBytes: 3 << 20}) })
	t.Run("tmpfs, relaxed", func(t *testing.T) {
		deletesMakeRoom(t, mount(t, "16m"), Options{BallastBytes: 4 << 20, Durability: Relaxed})
	})
	// btrfs needs new space for each overwrite. The old space counts until the whole extent is
	// overwritten.
	t.Run("quota of btrfs", func(t *testing.T) {
		if testing.Short() {
			t.Skip("fills a file system of 48 MB")
		}
		root := loopMount(t, "btrfs")
		dir := filepath.Join(root, "limited")
		for _, args := range [][]string{{"quota", "enable", root}, {"subvolume", "create", dir}, {"qgroup", "limit", "48M", dir}} {
			if out, err := exec.Command("btrfs", args...).CombinedOutput(); err != nil {
				t.Skipf("btrfs has no quotas here: %v: %s", err, out)
			}
		}
		deletesMakeRoom(t, dir, Options{BallastBytes: 4 << 20})
	})
}

func deletesMakeRoom(t *testing.T, dir string, opts Options) {
	t.Helper()
	var told []error
	opts.OnFull = func(err error) { told = append(told, err) }
	e, lock := openLocked(t, dir, opts)
	defer lock.Close()
	defer e.Close()
	// Several writers together make long extents.
	var mu sync.Mutex
	var keys []string
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for i := 0; ; i++ {
				key := fmt.Sprintf("/k/%d/%05d", w, i)
				if _, err := e.Put(t.Context(), PutRequest{Key: key, Value: incompressible(60_000)}); err != nil {
					if !errors.Is(err, ErrNoSpace) || !strings.Contains(err.Error(), dir) {
						t.Errorf("got %v, want %v and where", err, ErrNoSpace)
					}
					return
				}
				mu.Lock()
				keys = append(keys, key)
				mu.Unlock()
			}
		})
	}
	writers.Wait()
	gone := len(keys) * 2 / 3
	for _, key := range keys[:gone] {
		if _, err := e.Delete(t.Context(), DeleteRequest{Key: key}); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		_, err := e.Put(t.Context(), PutRequest{Key: "/again", Value: []byte("v")})
		if err == nil {
			break
		}
		if !errors.Is(err, ErrNoSpace) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	resp, err := e.Range(t.Context(), RangeRequest{Key: "/k/", End: "/k0", CountOnly: true})
	if want := int64(len(keys) - gone); err != nil || resp.Count != want {
		t.Errorf("%+v, %v, want %d keys", resp, err, want)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	// The close may need the ballast again.
	if len(told) < 2 || !errors.Is(told[0], ErrNoSpace) || told[1] != nil {
		t.Errorf("told %v, want that the disk is full and then that it is not", told)
	}
}
