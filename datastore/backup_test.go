package datastore

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

func TestBackupOfLiveEngine(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	e := openTest(t, dir, Options{})
	lease, err := e.Grant(t.Context(), 7, 3600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Put(t.Context(), PutRequest{Key: "/leased", Value: []byte("v"), Lease: lease.ID}); err != nil {
		t.Fatal(err)
	}
	// Two keys that always have one value, written all the time.
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	var writes atomic.Int64
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			value := []byte(fmt.Sprint(writes.Add(1)) + strings.Repeat("x", 3000))
			_, err := e.Txn(context.Background(), TxnRequest{Then: []Op{{Put: &PutRequest{Key: "/a", Value: value}}, {Put: &PutRequest{Key: "/b", Value: value}}}})
			if err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for i := range 5 {
		for n := writes.Load(); writes.Load() < n+50 && !t.Failed(); {
			runtime.Gosched()
		}
		file := filepath.Join(out, fmt.Sprint("backup", i))
		seen := e.Revision()
		c, err := e.Backup(t.Context(), file, BackupOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if c.Revision < seen || c.Keys != 3 || c.Bytes == 0 {
			t.Errorf("got %+v, want 3 keys at revision %d at least", c, seen)
		}
		v, err := Verify(t.Context(), file, nil)
		if err != nil || !v.OK || v.Revision != c.Revision {
			t.Errorf("backup: %+v, %v", v, err)
		}
	}
	cancel()
	<-ended
	if left := glob(t, out, ".*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	for i := range 5 { // a backup is a database that was closed in order
		to := t.TempDir()
		text, err := os.ReadFile(filepath.Join(out, fmt.Sprint("backup", i)))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, EngineFile), text, 0o600); err != nil {
			t.Fatal(err)
		}
		b, lock := openLocked(t, to, Options{})
		x, y := get(t, b, "/a", 0), get(t, b, "/b", 0)
		if !bytes.Equal(x.Value, y.Value) || x.ModRevision != y.ModRevision || x.ModRevision != b.Revision() {
			t.Errorf("backup %d has half a transaction: %d, %d of %d", i, x.ModRevision, y.ModRevision, b.Revision())
		}
		if l, err := b.TimeToLive(t.Context(), 7, true); err != nil || fmt.Sprint(l.Keys) != "[/leased]" {
			t.Errorf("lease: %+v, %v", l, err)
		}
		b.Close()
		lock.Close()
	}
	if v, err := e.Verify(t.Context(), nil); err != nil || !v.OK {
		t.Errorf("the live file: %+v, %v", v, err)
	}
	put(t, e, "/after", "v")
}

func TestBackupNeverOverwrites(t *testing.T) {
	dir := writtenStore(t, true)
	from, to := filepath.Join(dir, EngineFile), filepath.Join(t.TempDir(), "backup")
	if err := os.WriteFile(to, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := BackupFile(t.Context(), from, to, BackupOptions{}); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), to) {
		t.Errorf("got %v, want ErrExists naming the file", err)
	}
	if b, _ := os.ReadFile(to); string(b) != "mine" {
		t.Error("the file was overwritten")
	}
	if _, err := BackupFile(t.Context(), from, to, BackupOptions{Overwrite: true}); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want mode 600", info, err)
	}
	if _, err := BackupFile(t.Context(), from, from, BackupOptions{Overwrite: true}); err == nil {
		t.Error("over the database itself: want an error")
	}
	if left := glob(t, dir, "*-*"); len(left) > 0 {
		t.Errorf("files were made beside the database: %v", left)
	}
}

// What a killed backup leaves is removed by the next one of that name, and nothing
// else is: not what another is still working at, and not what only looks like it.
func TestNextBackupRemovesWhatAKilledOneLeft(t *testing.T) {
	from := filepath.Join(writtenStore(t, true), EngineFile)
	out := t.TempDir()
	to := filepath.Join(out, "b[1]?") // a pattern, if somebody took it for one
	killed, err := newPartial(to)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := killed.file(); err != nil {
		t.Fatal(err)
	}
	killed.lock.Close() // as the kernel does it
	atWork, err := newPartial(to + "x")
	if err != nil {
		t.Fatal(err)
	}
	defer atWork.remove()
	same := filepath.Join(out, ".b[1]?.2.partial")
	if err := os.Rename(atWork.dir, same); err != nil {
		t.Fatal(err)
	}
	atWork.dir = same
	others := []string{".b[1]?.mine.partial", ".b1.3.partial", ".b[1]?.4.partial.old"}
	for _, name := range others {
		if err := os.Mkdir(filepath.Join(out, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(out, name, "lock"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := BackupFile(t.Context(), from, to, BackupOptions{}); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	want := append([]string{"b[1]?", filepath.Base(same)}, others...)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("left are %q, want %q", got, want)
	}
}

func TestCancelledWorkLeavesNothing(t *testing.T) {
	dir, table := writtenStore(t, true), t.TempDir()
	kineFixture(t, table)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out := t.TempDir()
	if _, err := BackupFile(ctx, filepath.Join(dir, EngineFile), filepath.Join(out, "b"), BackupOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("backup: %v, want it cancelled", err)
	}
	lock, err := LockDir(table)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := Restore(ctx, lock, filepath.Join(dir, EngineFile), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("restore: %v, want it cancelled", err)
	}
	if _, err := Convert(ctx, lock, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("convert: %v, want it cancelled", err)
	}
	if left := append(glob(t, out, ".*"), glob(t, out, "*")...); len(left) > 0 {
		t.Errorf("left by the backup: %v", left)
	}
	if left := glob(t, table, "*"); len(left) != 2 {
		t.Errorf("left by the conversion: %v, want state.db and the lock", left)
	}
}

// A server in another process lets nobody read its file, and is named; what a kill leaves
// can be read.
func TestFileOfAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "KARVE_CRASH_DIR="+dir, "KARVE_CRASH_MODE=crash-full")
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	for text := ""; !strings.HasPrefix(text, "ack"); {
		if text, err = lines.ReadString('\n'); err != nil {
			t.Fatalf("the child has ended: %v", err)
		}
	}
	go io.Copy(io.Discard, lines)
	from := filepath.Join(dir, EngineFile)
	_, verifying := Verify(t.Context(), from, nil)
	_, copying := BackupFile(t.Context(), from, filepath.Join(t.TempDir(), "b"), BackupOptions{})
	_, counting := ReadStats(t.Context(), from)
	_, looking := LookAt(from)
	for what, err := range map[string]error{"verify": verifying, "backup": copying, "stats": counting, "look": looking} {
		if exclusiveVFS == "" {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		} else if !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), from) || runtime.GOOS == "linux" && !strings.Contains(err.Error(), fmt.Sprintf("process %d (", child.Process.Pid)) {
			t.Errorf("%s: %v, want ErrBusy, which names the file and process %d", what, err, child.Process.Pid)
		}
	}
	child.Process.Kill()
	child.Wait()
	// Killed: what is there is still all there.
	if v, err := Verify(t.Context(), from, nil); err != nil || !v.OK {
		t.Errorf("verify after the kill: %+v, %v", v, err)
	}
	openTest(t, dir, Options{})
}

func TestRestore(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "backup")
	e, lock := openLocked(t, dir, Options{})
	defer lock.Close()
	put(t, e, "/kept", "1")
	put(t, e, "/kept", "2")
	backup, err := e.Backup(t.Context(), file, BackupOptions{})
	if err != nil {
		t.Fatal(err)
	}
	put(t, e, "/kept", "lost")
	lost := put(t, e, "/lost", "v")
	crash(t, e)
	c, err := Restore(t.Context(), lock, file, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := lost + RestoreMargin; c.Revision != want || c.Keys != 1 {
		t.Errorf("got %+v, want revision %d", c, want)
	}
	if !strings.Contains(c.Kept, EngineFile+".before-restore-") {
		t.Errorf("kept as %q", c.Kept)
	}
	e, err = OpenEngine(lock, Options{BallastBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	kv := get(t, e, "/kept", 0)
	if want := (KeyValue{Key: "/kept", Value: []byte("2"), CreateRevision: 2, ModRevision: 3, Version: 2}); fmt.Sprint(*kv) != fmt.Sprint(want) {
		t.Errorf("got %+v, want %+v", *kv, want)
	}
	if get(t, e, "/lost", 0) != nil {
		t.Error("/lost is there")
	}
	for _, at := range []int64{backup.Revision, lost, lost + 1} {
		if _, err := e.Watch(WatchRequest{Key: "/kept", StartRevision: at}); !errors.Is(err, ErrCompacted) {
			t.Errorf("watch from %d: %v, want ErrCompacted", at, err)
		}
		if _, err := e.Range(t.Context(), RangeRequest{Key: "/kept", Revision: at}); !errors.Is(err, ErrCompacted) {
			t.Errorf("range at %d: %v, want ErrCompacted", at, err)
		}
	}
	if got := put(t, e, "/next", "v"); got != c.Revision+1 {
		t.Errorf("next write: revision %d, want %d", got, c.Revision+1)
	}

	// What was replaced is whole, with the writes that were in its log only.
	old := t.TempDir()
	text, err := os.ReadFile(c.Kept)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(old, EngineFile), text, 0o600); err != nil {
		t.Fatal(err)
	}
	wantValue(t, openTest(t, old, Options{}), "/lost", 0, "v")
}

func TestDamagedBackupIsRefused(t *testing.T) {
	sound := writtenStore(t, true)
	text, err := os.ReadFile(filepath.Join(sound, EngineFile))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "backup")
	for _, c := range []struct {
		name   string
		damage func(b []byte) []byte
	}{
		{"bit of a value", func(b []byte) []byte { b[bytes.Index(b, []byte("123123123"))] ^= 1; return b }},
		{"page", func(b []byte) []byte { clear(b[2*4096 : 5*4096]); return b }},
		{"cut off", func(b []byte) []byte { return b[:len(b)/2] }},
		{"no database", func(b []byte) []byte { return []byte("hello") }},
		{"empty", func(b []byte) []byte { return nil }},
		{"without its log", func([]byte) []byte {
			b, _ := os.ReadFile(filepath.Join(writtenStore(t, false), EngineFile))
			return b
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := os.WriteFile(file, c.damage(bytes.Clone(text)), 0o600); err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			e, lock := openLocked(t, dir, Options{})
			defer lock.Close()
			put(t, e, "/mine", "v")
			e.Close()
			if _, err := Restore(t.Context(), lock, file, nil); err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("got %v, want an error naming %s", err, file)
			}
			if left := glob(t, dir, EngineFile+"*"); len(left) != 1 {
				t.Errorf("files: %v, want the database only", left)
			}
			e, err := OpenEngine(lock, Options{BallastBytes: -1})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			wantValue(t, e, "/mine", 0, "v")
		})
	}
}

// A restore must do when nothing of the old database can be read, or there is none.
func TestRestoreOverDamage(t *testing.T) {
	file := filepath.Join(writtenStore(t, true), EngineFile)
	for _, c := range []struct {
		name    string
		prepare func(dir string) error
		kept    int
	}{
		{"nothing there", func(string) error { return nil }, 0},
		{"not a database", func(dir string) error { return os.WriteFile(filepath.Join(dir, EngineFile), []byte("junk"), 0o600) }, 1},
		{"junk with a log", func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, EngineFile), []byte("junk"), 0o600),
				os.WriteFile(filepath.Join(dir, EngineFile+"-wal"), bytes.Repeat([]byte("junk"), 5000), 0o600))
		}, 2},
		{"a log only", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, EngineFile+"-wal"), []byte("junk"), 0o600)
		}, 1},
		{"a table of kine's", func(dir string) error { kineFixture(t, dir); return nil }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := c.prepare(dir); err != nil {
				t.Fatal(err)
			}
			lock, err := LockDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			out, err := Restore(t.Context(), lock, file, nil)
			lock.Close()
			if err != nil {
				t.Fatal(err)
			}
			if kept := glob(t, dir, "*.before-restore-*"); len(kept) != c.kept {
				t.Errorf("kept: %v, want %d files", kept, c.kept)
			}
			e, conversion, _ := openConverted(t, dir)
			if conversion != nil || e.Revision() != out.Revision || out.Revision < RestoreMargin+301 {
				t.Errorf("revision %d, restored to %d, converted %+v", e.Revision(), out.Revision, conversion)
			}
			wantValue(t, e, "/k/099", 0, strings.Repeat("299", 100))
		})
	}
}

// After a stop at any step, a start finds the old data or the new, and a second
// restore succeeds.
func TestRestoreStoppedAnywhere(t *testing.T) {
	file := filepath.Join(writtenStore(t, true), EngineFile)
	for _, old := range []string{"closed", "killed", "table"} {
		seen := map[bool]int{}
		for n := 1; ; n++ {
			dir := t.TempDir()
			if old == "table" {
				kineFixture(t, dir)
			} else {
				e, lock := openLocked(t, dir, Options{})
				put(t, e, "/mine", "v")
				if old == "closed" {
					e.Close()
				} else {
					crash(t, e)
				}
				lock.Close()
			}
			step := stopAt(dir, n, file)
			if step == "done <nil>" {
				if n < 5 {
					t.Errorf("%d steps were looked at, want 5 at least", n-1)
				}
				break
			}
			if step == "" || strings.HasPrefix(step, "done") {
				t.Fatalf("step %d: the child said %q", n, step)
			}
			again := copyDir(t, dir)
			e, _, lock := openConverted(t, dir)
			restored := get(t, e, "/k/099", 0) != nil
			if mine := get(t, e, "/mine", 0) != nil || get(t, e, "/registry/new", 0) != nil; mine == restored {
				t.Errorf("%s, stopped at %q: old data %v, restored data %v", old, step, mine, restored)
			}
			seen[restored]++
			e.Close()
			lock.Close()
			if end := stopAt(again, 0, file); end != "done <nil>" {
				t.Errorf("%s, stopped at %q, restored again: %s", old, step, end)
			}
		}
		if seen[true] == 0 || seen[false] == 0 {
			t.Errorf("%s: restored at the stop %v, want both", old, seen)
		}
	}
}

func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}
