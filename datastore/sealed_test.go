package datastore

import (
	"context"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// foreign opens the database in dir as an sqlite3 shell does, runs statement, and closes the
// database. The close checkpoints the WAL and removes it.
func foreign(t *testing.T, dir, statement string) {
	t.Helper()
	c, err := sqlitefile.Connect(filepath.Join(dir, EngineFile), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Query(statement, func([]driver.Value) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// waitSealed waits until the newest commit has the mark "sealed".
func waitSealed(t *testing.T, e *Engine) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		sealed := false
		err := e.file.View(t.Context(), func(_ context.Context, c *sqlitefile.Connection) error {
			metas, err := c.Metas()
			sealed = metas["clean"] == 2 || metas["clean"] == -2
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if sealed {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the WAL has no mark that it is sealed")
		}
	}
}

// After a kill, another program checkpoints the whole WAL. Nothing is missing, and a start accepts the database. The test covers every kind of checkpoint, both modes, and several sizes.
func TestWALCopiedByAnotherProgram(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]func(t *testing.T, dir string){
		"looked into":  func(t *testing.T, dir string) { foreign(t, dir, "SELECT count(*) FROM log") },
		"truncated":    func(t *testing.T, dir string) { truncateWAL(t, dir) },
		"journal mode": func(t *testing.T, dir string) { foreign(t, dir, "PRAGMA journal_mode=DELETE") },
		"vacuumed":     func(t *testing.T, dir string) { foreign(t, dir, "VACUUM") },
	} {
		for _, mode := range []Durability{Full, Relaxed} {
			for _, writes := range []int{0, 10, 2000} {
				if testing.Short() && writes == 2000 {
					continue // they are durable one by one
				}
				t.Run(fmt.Sprintf("%s, %v, %d writes", name, mode, writes), func(t *testing.T) {
					dir := t.TempDir()
					e, lock := openLocked(t, dir, Options{Durability: mode})
					for i := range writes {
						put(t, e, fmt.Sprintf("/k/%03d", i%100), strings.Repeat(fmt.Sprint(i), 500))
					}
					waitSealed(t, e)
					crash(t, e)
					lock.Close()
					want := newestOf(t, copyStore(t, dir))
					how(t, dir)
					if sqlitefile.HasWAL(filepath.Join(dir, EngineFile)) {
						t.Fatal("the WAL is still there: this tests nothing")
					}
					if v, err := backup.Verify(t.Context(), sqlitefile.ClosedFile(filepath.Join(dir, EngineFile)), nil); err != nil || !v.OK {
						t.Errorf("verify: %+v, %v", v, err)
					}
					if _, err := backup.Write(t.Context(), sqlitefile.ClosedFile(filepath.Join(dir, EngineFile)), filepath.Join(t.TempDir(), "b")); err != nil {
						t.Error(err)
					}
					e, lock = openLocked(t, dir, Options{Durability: mode})
					e.Close()
					lock.Close()
					if got := newestOf(t, dir); got != want {
						t.Error("opened with other contents")
					}
				})
			}
		}
	}
}

// A kill while SQLite restarts the WAL leaves a complete database with the mark "open", and a WAL
// with a new header and no commit. A start that is killed, too, and every other reader, do not
// change that.
func TestRestartedWALIsKept(t *testing.T) {
	dir := writtenStore(t, false)
	path := filepath.Join(dir, EngineFile)
	c, err := sqlitefile.Connect(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetMetas(sqlitefile.Metas{"clean": 0}); err != nil {
		t.Fatal(err)
	}
	want := newestOf(t, copyStore(t, dir))
	if err := c.PersistWAL(true); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil { // this copies everything back
		t.Fatal(err)
	}
	wal, err := os.ReadFile(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	be := binary.BigEndian
	be.PutUint32(wal[16:], be.Uint32(wal[16:])+1) // the salts of the next generation
	be.PutUint32(wal[20:], be.Uint32(wal[20:])^0x5ca1ab1e)
	var order binary.ByteOrder = binary.LittleEndian
	if be.Uint32(wal)&1 == 1 {
		order = be
	}
	var s1, s2 uint32 // https://sqlite.org/fileformat2.html#checksum_algorithm
	for i := 0; i < 24; i += 8 {
		s1 += order.Uint32(wal[i:]) + s2
		s2 += order.Uint32(wal[i+4:]) + s1
	}
	be.PutUint32(wal[24:], s1)
	be.PutUint32(wal[28:], s2)
	if err := os.WriteFile(path+"-wal", wal, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, read := range map[string]func() error{
		"look":   func() error { _, err := sqlitefile.ReadInfo(path); return err },
		"verify": func() error { _, err := backup.Verify(t.Context(), sqlitefile.ClosedFile(path), nil); return err },
		"start that is killed": func() error {
			e, lock := openLocked(t, dir, Options{})
			crash(t, e)
			return lock.Close()
		},
	} {
		if err := read(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !sqlitefile.HasWAL(path) {
			t.Errorf("%s: the WAL is gone", name)
		}
	}
	if got := newestOf(t, dir); got != want {
		t.Error("opened with other contents")
	}
}

// truncateWAL empties the WAL, as wal_checkpoint(TRUNCATE) does.
func truncateWAL(t *testing.T, dir string) {
	t.Helper()
	c, err := sqlitefile.Connect(filepath.Join(dir, EngineFile), nil)
	if err != nil {
		t.Fatal(err)
	}
	err = c.PersistWAL(true)
	if err == nil {
		err = c.Query("PRAGMA wal_checkpoint(TRUNCATE)", func([]driver.Value) error { return nil })
	}
	if err := errors.Join(err, c.Close()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, EngineFile+"-wal")); err != nil || info.Size() != 0 {
		t.Fatalf("the WAL: %v, %v; want it there and empty", info, err)
	}
}

// newestOf returns every current key with its revision and value.
func newestOf(t *testing.T, dir string) string {
	t.Helper()
	e, lock := openLocked(t, dir, Options{})
	defer lock.Close()
	defer e.Close()
	resp, err := e.Range(t.Context(), RangeRequest{Key: "/", End: "0"})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(resp.KVs)
}

// While the engine uses its file, the file without the WAL is incomplete, at whatever moment the
// WAL goes missing. The database has a mark of that, and a start refuses it. Only checkpoints change the file itself.
func TestOwnFileWithoutItsWALIsRefused(t *testing.T) {
	t.Parallel()
	for _, mode := range []Durability{Full, Relaxed} {
		t.Run(mode.String(), func(t *testing.T) {
			dir := t.TempDir()
			e, lock := openLocked(t, dir, Options{Durability: mode})
			t.Cleanup(func() { e.Close(); lock.Close() })
			refused, changed := 0, true
			e.file.OnStep(func(step string) error { // the committer calls this, so there are no other writes
				look := changed
				if changed = step == "checkpoint"; !look {
					return nil
				}
				alone := t.TempDir()
				b, err := os.ReadFile(e.path)
				if err == nil {
					err = os.WriteFile(filepath.Join(alone, EngineFile), b, 0o600)
				}
				if err != nil {
					t.Error(err)
				}
				if err := tryOpen(t, alone); errors.Is(err, ErrCorrupt) && strings.Contains(err.Error(), "salvage") {
					refused++
				} else {
					t.Errorf("%s: got %v, want it refused and what to do", step, err)
				}
				return nil
			})
			for i := range 60 {
				put(t, e, fmt.Sprint("/k/", i%10), strings.Repeat("v", 200<<10))
			}
			if err := e.Compact(t.Context(), e.Revision(), true); err != nil {
				t.Fatal(err)
			}
			if refused < 3 {
				t.Errorf("refused only %d times", refused)
			}
		})
	}
}

// On a full disk, a checkpoint may copy "sealed" back and then fail. "open" then has to reach the
// database before the next commit.
func TestCheckpointOnAFullDiskLeavesTheFileOpen(t *testing.T) {
	// The commit of "open" finds no room. After the WAL has been copied back as it is, the
	// second attempt finds none either, or the copy that would bring "open" into the file.
	for fails, nth := range map[string]int32{"state": 1, "checkpoint": 2} {
		t.Run(fails, func(t *testing.T) {
			dir := t.TempDir()
			e, lock := openLocked(t, dir, Options{})
			t.Cleanup(func() { e.Close(); lock.Close() })
			waitSealed(t, e)
			var on atomic.Bool
			var states, then atomic.Int32
			e.file.OnStep(func(step string) error {
				if !on.Load() {
					return nil
				}
				if step == "state" && states.Add(1) == 1 || step == fails && states.Load() > 0 && then.Add(1) == nth {
					return syscall.ENOSPC
				}
				return nil
			})
			on.Store(true)
			// The writes are small: those after the failure must not make the next checkpoint due.
			for i := 0; then.Load() < nth; i++ {
				_, err := e.Put(t.Context(), PutRequest{Key: fmt.Sprint("/k/", i%10), Value: []byte(strings.Repeat("v", 20<<10))})
				if err != nil && !errors.Is(err, ErrNoSpace) {
					t.Fatal(err)
				}
			}
			on.Store(false)
			if _, err := e.Delete(t.Context(), DeleteRequest{Key: "/k/0"}); err != nil {
				t.Fatal(err)
			}
			alone := t.TempDir()
			b, err := os.ReadFile(e.path)
			if err == nil {
				err = os.WriteFile(filepath.Join(alone, EngineFile), b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := tryOpen(t, alone); !errors.Is(err, ErrCorrupt) {
				t.Errorf("without the wal, which has an acknowledged delete: got %v, want it refused", err)
			}
		})
	}
}
