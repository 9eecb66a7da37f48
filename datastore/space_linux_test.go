package datastore

import (
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The ballast cannot be compressed, or it would hold no room; one of a release that made
// such is made again.
func TestBallastIsIncompressible(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, EngineFile+".ballast")
	old := make([]byte, 1<<20)
	for i := range old {
		old[i] = byte(i*7 + 1) // as it was once
	}
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	openTest(t, dir, Options{BallastBytes: 1 << 20})
	for _, name := range []string{path, path + ".start"} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v, want mode 600", info, err)
		}
	}
	now, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var small bytes.Buffer
	w, _ := flate.NewWriter(&small, flate.BestCompression)
	if _, err := io.Copy(w, bytes.NewReader(now)); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if len(now) != 1<<20 || small.Len() < len(now) {
		t.Errorf("%d bytes, of which deflate makes %d", len(now), small.Len())
	}
	// A good one stays as it is: an SD card wears out.
	b := ballast{path: path, size: 1 << 20}
	if err := b.make(); err != nil {
		t.Fatal(err)
	}
	if again, _ := os.ReadFile(path); !bytes.Equal(again, now) {
		t.Error("it was written again")
	}
}

// The driver has no call for the system's error of a statement. Where its fields are
// called something else one day, a used-up quota would be a broken disk.
func TestSystemError(t *testing.T) {
	c, err := (&disk{path: filepath.Join(t.TempDir(), "x.db")}).connect(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	err = c.exec("ATTACH '" + filepath.Join(t.TempDir(), "none", "y.db") + "' AS y")
	if err == nil {
		err = c.exec("CREATE TABLE y.t (a)")
	}
	if err == nil || c.errno() != syscall.ENOENT {
		t.Errorf("%v: the system's error is %v, want %v", err, c.errno(), syscall.ENOENT)
	}
}

// What was deleted gives room without a compaction by anybody else.
func TestDeletesMakeRoom(t *testing.T) {
	t.Run("tmpfs", func(t *testing.T) { deletesMakeRoom(t, mount(t, "16m"), 1<<20) })
	// Each overwrite needs new space there, and old space counts until all of an extent is
	// overwritten.
	t.Run("quota of btrfs", func(t *testing.T) {
		root := loopMount(t, "btrfs")
		dir := filepath.Join(root, "limited")
		for _, args := range [][]string{{"quota", "enable", root}, {"subvolume", "create", dir}, {"qgroup", "limit", "48M", dir}} {
			if out, err := exec.Command("btrfs", args...).CombinedOutput(); err != nil {
				t.Skipf("btrfs has no quotas here: %v: %s", err, out)
			}
		}
		deletesMakeRoom(t, dir, 4<<20)
	})
}

func deletesMakeRoom(t *testing.T, dir string, ballast int64) {
	t.Helper()
	var told []error
	e, lock := openLocked(t, dir, Options{BallastBytes: ballast, OnFull: func(err error) { told = append(told, err) }})
	defer lock.Close()
	defer e.Close()
	var err error
	keys := 0
	for ; err == nil; keys++ {
		_, err = e.Put(t.Context(), PutRequest{Key: fmt.Sprintf("/k/%05d", keys), Value: incompressible(20 << 10)})
	}
	if !errors.Is(err, ErrNoSpace) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("got %v, want %v and where", err, ErrNoSpace)
	}
	for i := range keys / 2 {
		if _, err := e.Delete(t.Context(), DeleteRequest{Key: fmt.Sprintf("/k/%05d", i)}); err != nil {
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
	if want := int64(keys - 1 - keys/2); err != nil || resp.Count != want {
		t.Errorf("%+v, %v, want %d keys", resp, err, want)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if len(told) != 2 || !errors.Is(told[0], ErrNoSpace) || told[1] != nil {
		t.Errorf("told %v, want that the disk is full and then that it is not", told)
	}
}
