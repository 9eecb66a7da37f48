package datastore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// writtenStore makes a datastore of a few hundred rows and returns its directory.
func writtenStore(t *testing.T, clean bool) string {
	t.Helper()
	dir := t.TempDir()
	e, lock := openLocked(t, dir, Options{})
	for i := range 300 {
		put(t, e, fmt.Sprintf("/k/%03d", i%100), strings.Repeat(fmt.Sprint(i), 100))
	}
	if clean {
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	} else {
		crash(t, e)
	}
	lock.Close()
	return dir
}

func copyStore(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	for _, name := range []string{EngineFile, EngineFile + "-wal"} {
		b, err := os.ReadFile(filepath.Join(from, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// contents returns every version that can be read, so that a missing one shows.
func contents(t *testing.T, dir string) string {
	t.Helper()
	e, lock := openLocked(t, dir, Options{})
	defer lock.Close()
	defer e.Close()
	w := watch(t, e, WatchRequest{Key: "/", End: "0", StartRevision: 2, PrevKV: true})
	var b strings.Builder
	for w.RequestProgress(); ; w.RequestProgress() {
		resp, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.Events) == 0 {
			return fmt.Sprint(e.Revision(), b.String())
		}
		b.WriteString(describe(resp.Events))
	}
}

// The engine refuses a file with a flipped bit, unless the bit does not matter. It never opens a
// file that silently lacks something. The exception is the last transaction of the WAL, which looks
// like one that was never finished.
func TestFlippedBits(t *testing.T) {
	t.Parallel()
	flips := 150
	if testing.Short() {
		flips = 30
	}
	for _, c := range []struct {
		name, file string
		clean      bool
	}{{"database after a clean stop", EngineFile, true}, {"WAL after a kill", EngineFile + "-wal", false}} {
		t.Run(c.name, func(t *testing.T) {
			dir := writtenStore(t, c.clean)
			want := contents(t, copyStore(t, dir))
			whole, err := os.ReadFile(filepath.Join(dir, c.file))
			if err != nil {
				t.Fatal(err)
			}
			end := len(whole)
			if !c.clean {
				end = beforeLastCommit(whole)
			}
			refused := 0
			for range flips {
				at, bit := rand.IntN(end), byte(1)<<rand.IntN(8)
				damaged := copyStore(t, dir)
				b := bytes.Clone(whole)
				b[at] ^= bit
				if err := os.WriteFile(filepath.Join(damaged, c.file), b, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := tryOpen(t, damaged); err != nil {
					refused++
					if !strings.Contains(err.Error(), EngineFile) {
						t.Errorf("byte %d: the error does not name the file: %v", at, err)
					}
					continue
				}
				if got := contents(t, damaged); got != want {
					t.Errorf("byte %d, bit %#x: opened with other contents", at, bit)
				}
			}
			t.Logf("%d of %d flips refused, the others without effect", refused, flips)
			if refused == 0 {
				t.Error("nothing was refused")
			}
		})
	}
}

// beforeLastCommit returns the offset of the last transaction of a WAL. A flipped bit after it
// looks like a torn write.
func beforeLastCommit(wal []byte) int {
	const frame = 24 + 4096
	previous, end := 32, 32
	for at := 32; at+frame <= len(wal) && bytes.Equal(wal[at+8:at+16], wal[16:24]); at += frame {
		if binary.BigEndian.Uint32(wal[at+4:]) != 0 {
			previous, end = end, at+frame
		}
	}
	return previous
}

// Somebody puts another database in place by hand, and leaves the WAL of a killed server there. SQLite would copy that WAL into it.
// A start refuses, reading refuses, and neither changes a file. Without the WAL, the database is whole.
func TestForeignWALIsRefused(t *testing.T) {
	for name, other := range map[string]func(t *testing.T, from string) string{
		"a backup": func(t *testing.T, from string) string {
			to := filepath.Join(t.TempDir(), EngineFile)
			if _, err := backup.Write(t.Context(), sqlitefile.ClosedFile(filepath.Join(from, EngineFile)), to); err != nil {
				t.Fatal(err)
			}
			return to
		},
		"a copy of the closed file": func(_ *testing.T, from string) string { return filepath.Join(from, EngineFile) },
		"of another cluster":        func(t *testing.T, _ string) string { return filepath.Join(writtenStore(t, true), EngineFile) },
		"of an earlier release": func(t *testing.T, _ string) string {
			path := filepath.Join(writtenStore(t, true), EngineFile)
			c, err := sqlitefile.Connect(path, nil)
			if err == nil {
				err = errors.Join(c.Exec("DELETE FROM meta WHERE name LIKE 'run%'"), c.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
			return path
		},
	} {
		for _, writes := range []int{1, 700} { // within the first generation of the WAL, and after it
			t.Run(fmt.Sprint(name, ", ", writes), func(t *testing.T) {
				dir := writtenStore(t, true)
				other := other(t, copyStore(t, dir))
				want := newestOf(t, copyStore(t, filepath.Dir(other)))
				e, lock := openLocked(t, dir, Options{})
				for i := range writes {
					put(t, e, fmt.Sprintf("/later/%d", i), strings.Repeat("later", 2000))
				}
				waitSealed(t, e)
				crash(t, e)
				lock.Close()
				content, err := os.ReadFile(other)
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, EngineFile), content, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
				before := filesOf(t, dir)
				if err := tryOpen(t, dir); !errors.Is(err, sqlitefile.ErrForeignWAL) {
					t.Errorf("a start: %v", err)
				}
				err = sqlitefile.View(filepath.Join(dir, EngineFile), func(*sqlitefile.Connection) error { return nil })
				if !errors.Is(err, sqlitefile.ErrForeignWAL) {
					t.Errorf("reading: %v, want ErrForeignWAL", err)
				}
				if after := filesOf(t, dir); !maps.Equal(before, after) {
					t.Error("a file was changed")
				}
				if err := os.Remove(filepath.Join(dir, EngineFile+"-wal")); err != nil {
					t.Fatal(err)
				}
				if got := newestOf(t, dir); got != want {
					t.Error("without the WAL, it is not what it was")
				}
			})
		}
	}
}

// A server that is killed at any step of its start finds its own WAL again.
func TestKilledStartKnowsItsWAL(t *testing.T) {
	for _, clean := range []bool{true, false} {
		dir := writtenStore(t, clean)
		want := contents(t, copyStore(t, dir))
		for range 3 {
			f, err := sqlitefile.Open(filepath.Join(dir, EngineFile), false)
			if err != nil {
				t.Fatal(err)
			}
			f.OnStep(func(step string) error {
				if step == "checkpoint" {
					return errors.New("killed")
				}
				return nil
			})
			if err := f.MarkInUse(nil); err == nil {
				t.Fatal("it was not killed before the number was in the database itself")
			}
			killed := copyStore(t, dir)
			f.Close(false)
			dir = killed
		}
		if got := contents(t, dir); got != want {
			t.Errorf("clean %v: the database has other contents", clean)
		}
	}
}

// filesOf returns the contents of the database and its WAL, by name.
func filesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, name := range []string{EngineFile, EngineFile + "-wal"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(b)
	}
	return files
}

// A start refuses what is damaged, incomplete or not for this release, says the same the second time, and changes no file.
func TestRefusedDataAreLeftAlone(t *testing.T) {
	overwrite := func(offset int64, b string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.WriteAt([]byte(b), offset)
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
	// inWAL leaves what a statement has written in the WAL, as a kill does.
	inWAL := func(statement string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			c, err := sqlitefile.Connect(path, url.Values{"_pragma": {"wal_autocheckpoint(0)"}})
			if err == nil {
				err = c.Exec(statement)
			}
			if err != nil {
				t.Fatal(err)
			}
			killed := copyStore(t, filepath.Dir(path))
			c.Close()
			replace(t, filepath.Dir(path), killed)
		}
	}
	for _, c := range []struct {
		name   string
		clean  bool
		damage func(t *testing.T, path string)
		want   error
		text   string
	}{
		{"a newer schema", true, overwrite(60, string([]byte{0, 0, 0, sqlitefile.SchemaVersion + 1})), sqlitefile.ErrNewerSchema, "use the newer release"},
		// The header of the file has a version that this release knows.
		{"a newer schema in the WAL", false, inWAL(fmt.Sprintf("PRAGMA user_version = %d", sqlitefile.SchemaVersion+1)), sqlitefile.ErrNewerSchema, "use the newer release"},
		{"another program's", true, overwrite(68, "else"), sqlitefile.ErrForeign, ""},
		{"no database", true, overwrite(0, "not SQLite at all"), ErrCorrupt, ""},
		{"a missing WAL", false, func(t *testing.T, path string) { os.Remove(path + "-wal") }, ErrCorrupt, "-wal"},
		{"an empty WAL", false, func(t *testing.T, path string) { os.Truncate(path+"-wal", 0) }, ErrCorrupt, "-wal"},
		{"a bad row", true, func(t *testing.T, path string) {
			b, _ := os.ReadFile(path)
			overwrite(int64(bytes.Index(b, []byte("123123123"))), "9")(t, path)
		}, ErrCorrupt, fmt.Sprintf("row %d (revision 125)", sqlitefile.RowID(125, 0))},
		{"a bad row in the WAL", false, inWAL("UPDATE log SET crc = crc + 1 WHERE id = (SELECT MAX(id) FROM log)"), ErrCorrupt, "checksum"},
		// SQLite's own structure is sound.
		{"a missing row", true, func(t *testing.T, path string) {
			foreign(t, filepath.Dir(path), "DELETE FROM log WHERE id = (SELECT id FROM log ORDER BY id LIMIT 1 OFFSET 10)")
		}, ErrCorrupt, "has 299 rows"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := writtenStore(t, c.clean)
			path := filepath.Join(dir, EngineFile)
			c.damage(t, path)
			before := listing(t, dir)
			for range 2 {
				if err := tryOpen(t, dir); !errors.Is(err, c.want) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), c.text) {
					t.Errorf("got %v, want %v naming %s and %q", err, c.want, path, c.text)
				}
			}
			if after := listing(t, dir); after != before {
				t.Errorf("the refused data were changed: %s, before %s", after, before)
			}
		})
	}
}

// listing returns the names of a database and of what is beside it, with their contents, but for empty files.
func listing(t *testing.T, dir string) (all string) {
	t.Helper()
	for _, path := range glob(t, dir, EngineFile+"*") {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > 0 {
			all += fmt.Sprintf("%s %x ", filepath.Base(path), sha256.Sum256(b))
		}
	}
	return all
}

func TestFailedCommitPoisons(t *testing.T) {
	for _, step := range []string{"begin", "commit"} {
		t.Run(step, func(t *testing.T) {
			dir := t.TempDir()
			e, lock := openLocked(t, dir, Options{})
			put(t, e, "/a", "durable")
			e.file.OnStep(func(at string) error {
				if at == step {
					return errors.New("input/output error")
				}
				return nil
			})
			for range 3 {
				_, err := e.Put(t.Context(), PutRequest{Key: "/a", Value: []byte("unknown")})
				if !errors.Is(err, ErrUnknownOutcome) || !strings.Contains(err.Error(), "input/output error") {
					t.Errorf("got %v, want %v with its cause", err, ErrUnknownOutcome)
				}
			}
			select {
			case <-e.Failed():
			default:
				t.Error("the engine does not say that it failed")
			}
			wantValue(t, e, "/a", 0, "durable")
			if err := e.Close(); !errors.Is(err, ErrUnknownOutcome) {
				t.Errorf("close: %v, want the failure", err)
			}
			lock.Close()
			e = openTest(t, dir, Options{})
			wantValue(t, e, "/a", 0, "durable")
		})
	}
}

// If a checkpoint fails while a batch waits, the batch is neither acknowledged nor written.
func TestFailedCheckpointPoisons(t *testing.T) {
	dir := t.TempDir()
	e, lock := openLocked(t, dir, Options{})
	failing, fail := make(chan struct{}), make(chan struct{})
	e.file.OnStep(func(at string) error {
		if at != "checkpoint" {
			return nil
		}
		close(failing)
		<-fail
		return errors.New("input/output error")
	})
	before := put(t, e, "/a", strings.Repeat("x", 3<<20))
	<-failing
	answer := make(chan error)
	go func() {
		_, err := e.Put(context.Background(), PutRequest{Key: "/a", Value: []byte("too late")})
		answer <- err
	}()
	for e.mu.Lock(); e.pending == nil; e.mu.Lock() {
		e.mu.Unlock()
		runtime.Gosched()
	}
	e.mu.Unlock()
	close(fail)
	if err := <-answer; !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("got %v, want %v", err, ErrUnknownOutcome)
	}
	if got := e.Revision(); got != before {
		t.Errorf("revision %d, want it to stay %d", got, before)
	}
	e.Close()
	lock.Close()
	e = openTest(t, dir, Options{})
	if got := e.Revision(); got != before {
		t.Errorf("after a start: revision %d, want %d", got, before)
	}
}

// In mode Relaxed, a failure of the machine may lose revisions. They are never used a second time,
// and a client that has seen one of them has to list again.
func TestRelaxedLossIsNoticed(t *testing.T) {
	dir := t.TempDir()
	e, lock := openLocked(t, dir, Options{Durability: Relaxed, syncInterval: time.Hour})
	put(t, e, "/a", "kept")
	path := filepath.Join(dir, EngineFile)
	saved, err := os.ReadFile(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	var lost int64
	for range 50 {
		lost = put(t, e, "/a", "lost")
	}
	crash(t, e)
	lock.Close()
	if err := os.WriteFile(path+"-wal", saved, 0o600); err != nil {
		t.Fatal(err)
	}
	e = openTest(t, dir, Options{})
	wantValue(t, e, "/a", 0, "kept")
	if e.Revision() <= lost {
		t.Errorf("revision %d, want it above the lost %d", e.Revision(), lost)
	}
	if _, err := e.Watch(WatchRequest{Key: "/a", StartRevision: lost + 1}); !errors.Is(err, ErrCompacted) {
		t.Errorf("watch from a lost revision: %v, want %v", err, ErrCompacted)
	}
	if got := put(t, e, "/a", "new"); got <= lost {
		t.Errorf("revision %d was given out again", got)
	}
}

// A defect panics while the sequencer's lock is held, in a caller that recovers. The lock is
// released, no partial change is committed, and the engine reports its failure.
func TestPanicPoisons(t *testing.T) {
	dir := t.TempDir()
	e, lock := openLocked(t, dir, Options{})
	defer lock.Close()
	before := put(t, e, "/a", "durable")
	err := e.submit(t.Context(), func(b *batch) (bool, error) {
		e.spec.revision++
		e.change(b, &version{Row: sqlitefile.Row{ID: sqlitefile.RowID(e.spec.revision, 0), Key: "/a", Create: before, Version: 2}}, []byte("half"))
		panic("a defect")
	})
	var defect *PanicError
	if !errors.Is(err, ErrUnknownOutcome) || !errors.As(err, &defect) || !strings.Contains(string(defect.Stack), "TestPanicPoisons") {
		t.Errorf("got %v, want the panic and its stack", err)
	}
	select {
	case <-e.Failed():
	case <-time.After(time.Minute):
		t.Fatal("the owner is not told")
	}
	if _, err := e.Put(t.Context(), PutRequest{Key: "/a", Value: []byte("after")}); !errors.As(err, &defect) {
		t.Errorf("a write after it: %v, want the panic", err)
	}
	wantValue(t, e, "/a", 0, "durable")
	if err := e.Close(); !errors.As(err, &defect) {
		t.Errorf("close: %v, want the panic", err)
	}
	lock.Close()
	e = openTest(t, dir, Options{})
	wantValue(t, e, "/a", 0, "durable")
	if got := e.Revision(); got != before {
		t.Errorf("revision %d, want %d", got, before)
	}
}
