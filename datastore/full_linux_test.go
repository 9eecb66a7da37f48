package datastore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/internal/eventually"
)

// mount makes a small file system for the test, or skips it.
func mount(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("a small tmpfs cannot be mounted here (needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

func incompressible(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// On a full disk, puts return ErrNoSpace and everything else works. Once there is space again, puts
// work too. Nothing is lost in between.
func TestDiskFull(t *testing.T) {
	dir := mount(t, "12m")
	e, lock := openLocked(t, dir, Options{BallastBytes: 2 << 20})
	t.Cleanup(func() { e.Close(); lock.Close() })
	w := watch(t, e, WatchRequest{Key: "/", End: "0"})
	acked := map[string]string{}
	var failure error
	for i := 0; i < 20000 && failure == nil; i++ {
		key, value := fmt.Sprintf("/k/%05d", i), string(incompressible(1024))
		if _, failure = e.Put(t.Context(), PutRequest{Key: key, Value: []byte(value)}); failure == nil {
			acked[key] = value
		}
	}
	if !errors.Is(failure, ErrNoSpace) || !strings.Contains(failure.Error(), dir) || !strings.Contains(failure.Error(), "MiB free") {
		t.Fatalf("after %d puts: %v, want %v, the directory and the free space", len(acked), failure, ErrNoSpace)
	}
	if _, err := os.Stat(filepath.Join(dir, EngineFile+".ballast")); err == nil {
		t.Error("the ballast is still there")
	}
	check := func() {
		t.Helper()
		resp, err := e.Range(t.Context(), RangeRequest{Key: "/k/", End: "/k0"})
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.KVs) != len(acked) {
			t.Errorf("%d keys, want %d", len(resp.KVs), len(acked))
		}
		for _, kv := range resp.KVs {
			if acked[kv.Key] != string(kv.Value) {
				t.Errorf("%s has another value", kv.Key)
			}
		}
	}
	check()
	if err := e.Writable(); !errors.Is(err, ErrNoSpace) {
		t.Errorf("Writable on a full disk: %v", err)
	}
	if _, err := e.Grant(t.Context(), 0, 60); !errors.Is(err, ErrNoSpace) {
		t.Errorf("grant on a full disk: %v", err)
	}
	if resp := next(t, w); len(resp.Events) == 0 {
		t.Error("the watch has no events")
	}
	// A client can free space by deletes and a compaction.
	for i := 0; i < len(acked); i++ {
		key := fmt.Sprintf("/k/%05d", i)
		if i%4 == 0 {
			continue
		}
		if _, err := e.Delete(t.Context(), DeleteRequest{Key: key}); err != nil {
			t.Fatalf("delete %d on a full disk: %v", i, err)
		}
		defer delete(acked, key)
	}
	if err := e.Compact(t.Context(), e.Revision(), true); err != nil {
		t.Fatalf("compaction on a full disk: %v", err)
	}
	deadline := time.Now().Add(eventually.Limit)
	for {
		_, err := e.Put(t.Context(), PutRequest{Key: "/again", Value: []byte("room")})
		if err == nil {
			break
		}
		if !errors.Is(err, ErrNoSpace) || time.Now().After(deadline) {
			t.Fatalf("put after compaction: %v (%+v)", err, e.Stats())
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err := e.Writable(); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	e, lock = openLocked(t, dir, Options{BallastBytes: 2 << 20})
	for i := 0; i < len(acked); i += 4 {
		key := fmt.Sprintf("/k/%05d", i)
		wantValue(t, e, key, 0, acked[key])
	}
	wantValue(t, e, "/again", 0, "room")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	lock.Close()
}

// fillDisk leaves no free byte, and returns the file that takes the space.
func fillDisk(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, block := range []int{1 << 20, 1 << 12, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(incompressible(block))
		}
	}
	return f.Name()
}

// A start on a disk without a free byte removes the ballast and serves reads. Once another program has freed space, puts work.
func TestStartOnFullDisk(t *testing.T) {
	dir := mount(t, "8m")
	e, lock := openLocked(t, dir, Options{BallastBytes: 1 << 20})
	put(t, e, "/a", "v")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	other := fillDisk(t, dir)
	e, lock = openLocked(t, dir, Options{BallastBytes: 1 << 20})
	t.Cleanup(func() { e.Close(); lock.Close() })
	wantValue(t, e, "/a", 0, "v")
	if _, err := e.Put(t.Context(), PutRequest{Key: "/b"}); !errors.Is(err, ErrNoSpace) {
		t.Errorf("put: %v, want %v", err, ErrNoSpace)
	}
	if _, err := e.Delete(t.Context(), DeleteRequest{Key: "/a"}); err != nil {
		t.Errorf("delete: %v", err)
	}
	revision := e.Revision()
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	time.Sleep(directory.RetryInterval)
	if got := put(t, e, "/back", "v"); got != revision+1 {
		t.Errorf("the first put once there is space: revision %d, want %d", got, revision+1)
	}
}

// A process that cannot open more files continues with its open ones.
func TestOutOfFileDescriptors(t *testing.T) {
	e := openTest(t, "", Options{CacheBytes: 10 << 10})
	names := fill(t, e, 100)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(os.DevNull) // gets the lowest free descriptor
	if err != nil {
		t.Fatal(err)
	}
	lowest := uint64(f.Fd())
	f.Close()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: lowest, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	if f, err := os.Open(os.DevNull); err == nil {
		f.Close()
		t.Fatal("a file could be opened: the limit is none")
	}

	w := watch(t, e, WatchRequest{Key: "/big/", End: PrefixEnd("/big/")})
	var ops []Op // more than the first part of a WAL's index is for
	for i := range 20 {
		ops = append(ops, Op{Put: &PutRequest{Key: fmt.Sprint("/big/", i), Value: incompressible(1 << 20)}})
	}
	if _, err := e.Txn(t.Context(), TxnRequest{Then: ops}); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		put(t, e, "/big/a", strings.Repeat("v", 1<<20))
	}
	if resp := next(t, w); len(resp.Events) == 0 {
		t.Error("the watch has no events")
	}
	if resp, err := e.Range(t.Context(), RangeRequest{Key: names[0], End: PrefixEnd("/registry/")}); err != nil || len(resp.KVs) != 100 || len(resp.KVs[99].Value) != 1024 {
		t.Errorf("read from the disk: %v", err)
	}
	if err := e.Compact(t.Context(), e.Revision(), true); err != nil {
		t.Errorf("compaction: %v", err)
	}
	if _, err := e.Backup(t.Context(), filepath.Join(t.TempDir(), "b")); !errors.Is(err, unix.EMFILE) {
		t.Errorf("backup: %v, want %v", err, unix.EMFILE)
	}
	if err := e.Err(); err != nil {
		t.Error(err)
	}
}

// No server starts on a disk that has become read-only. From there, and from a full one, what a killed server has left can be saved.
func TestSaveFromFailedDisk(t *testing.T) {
	for name, fail := range map[string]func(t *testing.T, dir string){
		"full": func(t *testing.T, dir string) { fillDisk(t, dir) },
		"read-only": func(t *testing.T, dir string) {
			if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				t.Skipf("cannot make a file system read-only here: %v", err)
			}
			if err := tryOpen(t, dir); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "karve backup create --data-dir "+dir) {
				t.Errorf("a start: %v, want the command that saves the cluster", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := mount(t, "8m")
			e, lock := openLocked(t, dir, Options{})
			put(t, e, "/a", "v")
			crash(t, e)
			lock.Close()
			path := filepath.Join(dir, EngineFile)
			if !sqlitefile.HasWAL(path) {
				t.Fatal("the server has left no WAL")
			}
			fail(t, dir)
			before := namesIn(t, dir)
			from := sqlitefile.ClosedFile(path)
			if v, err := backup.Verify(t.Context(), from, nil); err != nil || !v.OK || v.Keys != 1 {
				t.Errorf("verify: %+v, %v", v, err)
			}
			if s, err := backup.ReadStats(t.Context(), from); err != nil || s.Keys != 1 {
				t.Errorf("stats: %+v, %v", s, err)
			}
			if b, err := backup.Write(t.Context(), from, filepath.Join(t.TempDir(), "b")); err != nil || b.Keys != 1 {
				t.Errorf("backup: %+v, %v", b, err)
			}
			if after := strings.Replace(namesIn(t, dir), "- "+EngineFile+"-shm ", "", 1); after != before {
				t.Errorf("in the directory are %s, want %s", after, before)
			}
		})
	}
}

func namesIn(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(entries)
}
