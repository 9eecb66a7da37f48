package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/enginetest"
	"github.com/karve-k8s/karve/datastore/kineimport"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// The directory and the backup of a child of this test, which restores.
const (
	restoreDir  = "KARVE_TEST_RESTORE_DIR"
	restoreFile = "KARVE_TEST_RESTORE_FILE"
)

func init() {
	if dir := os.Getenv(restoreDir); dir != "" {
		lock, err := directory.Acquire(dir)
		if err == nil {
			_, err = Restore(context.Background(), lock, os.Getenv(restoreFile), nil)
		}
		fmt.Print("done ", err)
		os.Exit(0)
	}
}

// A restore removes what earlier ones have kept, but for a few, and never what only has such a name.
func TestRestoresKeepAFewDatabases(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "backup")
	e, lock := enginetest.OpenLocked(t, dir, datastore.Options{})
	defer lock.Close()
	enginetest.Put(t, e, "/k", "v")
	if _, err := e.Backup(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	database := filepath.Join(dir, datastore.EngineFile)
	others := []string{database + ".before-restore-mine", database + ".before-restore-20010101T000000Z"}
	for _, path := range others {
		if err := os.WriteFile(path, []byte("not a database"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// A clock that was ahead has named one, which is not newer than what the next restore keeps.
	if err := os.Link(database, database+".before-restore-20990101T000000Z"); err != nil {
		t.Fatal(err)
	}
	kept, removed := 1, 0
	for range keptMax + 1 {
		done, err := Restore(t.Context(), lock, file, nil)
		if err != nil {
			t.Fatal(err)
		}
		if there, err := directory.Exists(done.Kept); !there {
			t.Errorf("%s, which the restore has kept, is not there: %v", done.Kept, err)
		}
		kept++
		removed += len(done.Removed)
	}
	if got := len(enginetest.Glob(t, dir, "*.before-restore-*Z*")); removed != kept-keptMax || got != keptMax+1 {
		t.Errorf("%d of %d were removed, and %d are there", removed, kept, got)
	}
	for _, path := range others {
		if there, err := directory.Exists(path); !there {
			t.Errorf("%s is gone: %v", path, err)
		}
	}
}

func TestRestore(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "backup")
	e, lock := enginetest.OpenLocked(t, dir, datastore.Options{})
	defer lock.Close()
	enginetest.Put(t, e, "/kept", "1")
	enginetest.Put(t, e, "/kept", "2")
	made, err := e.Backup(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	enginetest.Put(t, e, "/kept", "lost")
	lost := enginetest.Put(t, e, "/lost", "v")
	enginetest.Crash(t, e)
	least := backup.Above(lost)
	c, err := Restore(t.Context(), lock, file, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Revision < least || c.Keys != 1 {
		t.Errorf("got %+v, want revision %d or more", c, least)
	}
	if !strings.Contains(c.Kept, datastore.EngineFile+".before-restore-") {
		t.Errorf("kept as %q", c.Kept)
	}
	e, err = datastore.OpenEngine(lock, datastore.Options{BallastBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	kv := enginetest.Get(t, e, "/kept", 0)
	if want := (datastore.KeyValue{Key: "/kept", Value: []byte("2"), CreateRevision: 2, ModRevision: 3, Version: 2}); fmt.Sprint(*kv) != fmt.Sprint(want) {
		t.Errorf("got %+v, want %+v", *kv, want)
	}
	if enginetest.Get(t, e, "/lost", 0) != nil {
		t.Error("/lost is there")
	}
	for _, at := range []int64{made.Revision, lost, lost + 1} {
		if _, err := e.Watch(datastore.WatchRequest{Key: "/kept", StartRevision: at}); !errors.Is(err, datastore.ErrCompacted) {
			t.Errorf("watch from %d: %v, want ErrCompacted", at, err)
		}
		if _, err := e.Range(t.Context(), datastore.RangeRequest{Key: "/kept", Revision: at}); !errors.Is(err, datastore.ErrCompacted) {
			t.Errorf("range at %d: %v, want ErrCompacted", at, err)
		}
	}
	if got := enginetest.Put(t, e, "/next", "v"); got != c.Revision+1 {
		t.Errorf("next write: revision %d, want %d", got, c.Revision+1)
	}

	// What was replaced is whole, with the writes that were in its WAL only.
	old := t.TempDir()
	text, err := os.ReadFile(c.Kept)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(old, datastore.EngineFile), text, 0o600); err != nil {
		t.Fatal(err)
	}
	enginetest.WantValue(t, enginetest.Open(t, old, datastore.Options{}), "/lost", "v")
}

// What Verify finds, TestVerifyFindsDamage in backup has.
func TestDamagedBackupIsRefused(t *testing.T) {
	file := filepath.Join(enginetest.Written(t, true), datastore.EngineFile)
	damage(t, filepath.Dir(file), datastore.EngineFile, func(b []byte) []byte { b[bytes.Index(b, []byte("123123123"))] ^= 1; return b })
	dir := t.TempDir()
	e, lock := enginetest.OpenLocked(t, dir, datastore.Options{})
	defer lock.Close()
	enginetest.Put(t, e, "/mine", "v")
	e.Close()
	if _, err := Restore(t.Context(), lock, file, nil); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v, want an error naming %s", err, file)
	}
	if left := enginetest.Glob(t, dir, datastore.EngineFile+"*"); len(left) != 1 {
		t.Errorf("files: %v, want the database only", left)
	}
	e, err := datastore.OpenEngine(lock, datastore.Options{BallastBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	enginetest.WantValue(t, e, "/mine", "v")
}

// A restore must do when nothing of the old database can be read, or there is none.
func TestRestoreOverDamage(t *testing.T) {
	file := filepath.Join(enginetest.Written(t, true), datastore.EngineFile)
	for _, c := range []struct {
		name    string
		prepare func(dir string) error
		kept    int
	}{
		{"nothing there", func(string) error { return nil }, 0},
		{"not a database", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, datastore.EngineFile), []byte("junk"), 0o600)
		}, 1},
		{"junk with a WAL", func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, datastore.EngineFile), []byte("junk"), 0o600),
				os.WriteFile(filepath.Join(dir, datastore.EngineFile+"-wal"), bytes.Repeat([]byte("junk"), 5000), 0o600))
		}, 2},
		{"a WAL only", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, datastore.EngineFile+"-wal"), []byte("junk"), 0o600)
		}, 1},
		{"a table of kine's", func(dir string) error { enginetest.KineFixture(t, dir); return nil }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := c.prepare(dir); err != nil {
				t.Fatal(err)
			}
			lock, err := directory.Acquire(dir)
			if err != nil {
				t.Fatal(err)
			}
			out, err := Restore(t.Context(), lock, file, nil)
			lock.Close()
			if err != nil {
				t.Fatal(err)
			}
			if kept := enginetest.Glob(t, dir, "*.before-restore-*"); len(kept) != c.kept {
				t.Errorf("kept: %v, want %d files", kept, c.kept)
			}
			e, _, _ := open(t, dir)
			if e.Revision() != out.Revision || out.Revision < backup.RevisionMargin+301 {
				t.Errorf("revision %d, restored to %d", e.Revision(), out.Revision)
			}
			enginetest.WantValue(t, e, "/k/099", strings.Repeat("299", 100))
		})
	}
}

// A restore is killed at each call that changes what a name of the database stands for. A start then finds the old data
// or the restored ones, and a second restore succeeds. An old database that no start accepts stays as it was.
func TestRestoreStoppedAnywhere(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed: no way to stop at a system call")
	}
	if out, err := exec.Command(strace, "-f", "-o", os.DevNull, "true").CombinedOutput(); err != nil {
		t.Skipf("strace may not trace here: %v: %s", err, out)
	}
	file := filepath.Join(enginetest.Written(t, true), datastore.EngineFile)
	restoreIn := func(dir, calls string, killAt int) string { // each kind of call is counted by itself
		path := filepath.Join(dir, datastore.EngineFile)
		cmd := exec.Command(strace, "-f", "-qq", "-o", os.DevNull, "-P", path, "-P", path+"-wal", "-P", path+".replacement",
			"-e", "trace="+calls, "-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", calls, killAt), os.Args[0])
		cmd.Env = append(os.Environ(), restoreDir+"="+dir, restoreFile+"="+file)
		out, _ := cmd.Output()
		return string(out)
	}
	old := map[string]func(dir string){
		"closed": func(dir string) {
			e, lock := enginetest.OpenLocked(t, dir, datastore.Options{})
			enginetest.Put(t, e, "/mine", "v")
			e.Close()
			lock.Close()
		},
		"killed": func(dir string) {
			e, lock := enginetest.OpenLocked(t, dir, datastore.Options{})
			enginetest.Put(t, e, "/mine", "v")
			enginetest.Crash(t, e)
			lock.Close()
		},
		"damaged": func(dir string) {
			if err := os.CopyFS(dir, os.DirFS(enginetest.Written(t, false))); err != nil {
				t.Fatal(err)
			}
			damage(t, dir, datastore.EngineFile+"-wal", func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		},
	}
	for name, prepare := range old {
		t.Run(name, func(t *testing.T) {
			seen := map[bool]int{}
			for _, calls := range []string{"linkat", "?renameat,?renameat2", "?unlink,unlinkat"} {
				for n := 1; ; n++ {
					dir := t.TempDir()
					prepare(dir)
					before := databaseIn(dir)
					said := restoreIn(dir, calls, n)
					if said == "done <nil>" {
						break
					} else if said != "" {
						t.Fatalf("%s %d: the child said %q", calls, n, said)
					}
					again := copyDir(t, dir)
					seen[foundRestored(t, dir, before)]++
					if said := restoreIn(again, calls, 1000); said != "done <nil>" {
						t.Errorf("%s %d: restored again: %s", calls, n, said)
					}
				}
			}
			if seen[true] == 0 || seen[false] == 0 {
				t.Errorf("restored at the kill %v, want both", seen)
			}
		})
	}
}

// databaseIn returns the contents of a database and its WAL.
func databaseIn(dir string) (out [2]string) {
	for i, suffix := range []string{"", "-wal"} {
		b, _ := os.ReadFile(filepath.Join(dir, datastore.EngineFile+suffix))
		out[i] = string(b)
	}
	return out
}

// foundRestored reports whether a start finds the restored data or the old ones. If it is refused, the old database must be
// as it was.
func foundRestored(t *testing.T, dir string, before [2]string) bool {
	t.Helper()
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	e, _, err := Open(lock, datastore.Options{BallastBytes: -1})
	if err != nil {
		if databaseIn(dir) != before {
			t.Errorf("a start is refused, and the old database has changed: %v", err)
		}
		return false
	}
	defer e.Close()
	restored := enginetest.Get(t, e, "/k/099", 0) != nil
	if mine := enginetest.Get(t, e, "/mine", 0) != nil; mine == restored {
		t.Errorf("old data %v, restored data %v", mine, restored)
	}
	return restored
}

// What a restore that fails has kept is named, and the next start has the restored data.
func TestRestoreThatFailsNamesWhatItKept(t *testing.T) {
	file, dir := filepath.Join(enginetest.Written(t, true), datastore.EngineFile), t.TempDir()
	e, lock := enginetest.OpenLocked(t, dir, datastore.Options{})
	defer lock.Close()
	enginetest.Put(t, e, "/mine", "v")
	e.Close()
	path := filepath.Join(dir, datastore.EngineFile)
	if err := os.MkdirAll(filepath.Join(path+"-shm", "obstacle"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Restore(t.Context(), lock, file, nil)
	kept := enginetest.Glob(t, dir, "*.before-restore-*")
	if err == nil || len(kept) != 1 || !strings.Contains(err.Error(), kept[0]) || !strings.Contains(err.Error(), "next start") {
		t.Fatalf("got %v, want an error that names %v and says how it goes on", err, kept)
	}
	if err := os.RemoveAll(path + "-shm"); err != nil {
		t.Fatal(err)
	}
	if v, err := backup.Verify(t.Context(), sqlitefile.ClosedFile(path), nil); err != nil || !v.OK || v.Keys != 100 {
		t.Errorf("verify before the start: %+v, %v, want the restored data", v, err)
	}
	lock.Close()
	e, replaced, _ := open(t, dir)
	enginetest.WantValue(t, e, "/k/099", strings.Repeat("299", 100))
	if !replaced {
		t.Error("the start does not say that it has finished the restore")
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

func TestCancelledWorkLeavesNothing(t *testing.T) {
	dir, table := enginetest.Written(t, true), t.TempDir()
	enginetest.KineFixture(t, table)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out := t.TempDir()
	if _, err := backup.Write(ctx, sqlitefile.ClosedFile(filepath.Join(dir, datastore.EngineFile)), filepath.Join(out, "b")); !errors.Is(err, context.Canceled) {
		t.Errorf("backup: %v, want it cancelled", err)
	}
	lock, err := directory.Acquire(table)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := Restore(ctx, lock, filepath.Join(dir, datastore.EngineFile), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("restore: %v, want it cancelled", err)
	}
	if _, err := kineimport.Import(ctx, lock, filepath.Join(table, kineimport.FileName), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("import: %v, want it cancelled", err)
	}
	if left := append(enginetest.Glob(t, out, ".*"), enginetest.Glob(t, out, "*")...); len(left) > 0 {
		t.Errorf("left by the backup: %v", left)
	}
	if left := enginetest.Glob(t, table, "*"); len(left) != 2 {
		t.Errorf("left by the import: %v, want state.db and the lock", left)
	}
}

// open opens a directory as it is found.
func open(t *testing.T, dir string) (e *datastore.Engine, replaced bool, lock *directory.Lock) {
	t.Helper()
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	e, replaced, err = Open(lock, datastore.Options{BallastBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e, replaced, lock
}

// A directory with a table of kine's only is refused, and the error says how its keys come along. Beside a database of the
// engine, the table is left alone.
func TestTableIsNamed(t *testing.T) {
	dir := t.TempDir()
	want, _ := enginetest.KineFixture(t, dir)
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, kineimport.FileName)
	if _, _, err := Open(lock, datastore.Options{BallastBytes: -1}); err == nil || !strings.Contains(err.Error(), "karve datastore import "+file) {
		t.Errorf("got %v, want the command that imports %s", err, file)
	}
	if left := enginetest.Glob(t, dir, "*"); len(left) != 2 {
		t.Errorf("files: %v, want the table and the lock", left)
	}
	if _, err := kineimport.Import(t.Context(), lock, file, nil); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	e, _, _ := open(t, dir)
	enginetest.WantKeys(t, e, want)
}
