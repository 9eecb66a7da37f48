package backup_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/enginetest"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

func TestBackupOfLiveEngine(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	e := enginetest.Open(t, dir, datastore.Options{})
	lease, err := e.Grant(t.Context(), 7, 3600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Put(t.Context(), datastore.PutRequest{Key: "/leased", Value: []byte("v"), Lease: lease.ID}); err != nil {
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
			_, err := e.Txn(context.Background(), datastore.TxnRequest{Then: []datastore.Op{{Put: &datastore.PutRequest{Key: "/a", Value: value}}, {Put: &datastore.PutRequest{Key: "/b", Value: value}}}})
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
		c, err := e.Backup(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		if c.Revision < seen || c.Keys != 3 || c.Bytes == 0 {
			t.Errorf("got %+v, want 3 keys at revision %d at least", c, seen)
		}
		v, err := backup.Verify(t.Context(), sqlitefile.ClosedFile(file), nil)
		if err != nil || !v.OK || v.Revision != c.Revision {
			t.Errorf("backup: %+v, %v", v, err)
		}
	}
	cancel()
	<-ended
	if left := enginetest.Glob(t, out, ".*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	for i := range 5 { // a backup is a database that was closed in order
		to := t.TempDir()
		text, err := os.ReadFile(filepath.Join(out, fmt.Sprint("backup", i)))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, datastore.EngineFile), text, 0o600); err != nil {
			t.Fatal(err)
		}
		b, lock := enginetest.OpenLocked(t, to, datastore.Options{})
		x, y := enginetest.Get(t, b, "/a", 0), enginetest.Get(t, b, "/b", 0)
		if !bytes.Equal(x.Value, y.Value) || x.ModRevision != y.ModRevision {
			t.Errorf("backup %d has half a transaction: %d, %d", i, x.ModRevision, y.ModRevision)
		}
		// Copied by hand, it is older than what clients have seen since.
		if seen := e.Revision(); b.Revision() < backup.Above(seen)-backup.RevisionMargin/2 {
			t.Errorf("backup %d goes on at %d, clients have seen %d", i, b.Revision(), seen)
		}
		if revision := b.Revision(); enginetest.Put(t, b, "/a", "new") != revision+1 {
			t.Errorf("backup %d: the revision rises more than once", i)
		}
		if l, err := b.TimeToLive(t.Context(), 7, true); err != nil || fmt.Sprint(l.Keys) != "[/leased]" {
			t.Errorf("lease: %+v, %v", l, err)
		}
		b.Close()
		lock.Close()
	}
	if v, err := backup.Verify(t.Context(), e.Source(), nil); err != nil || !v.OK {
		t.Errorf("the live file: %+v, %v", v, err)
	}
	enginetest.Put(t, e, "/after", "v")
}

// Another database may take the name of the one that is open.
func TestBackupOfTheOpenDatabase(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	e, own := enginetest.OpenLocked(t, dir, datastore.Options{})
	enginetest.Put(t, e, "/a", "v")
	if err := os.Rename(dir, dir+"2"); err != nil {
		t.Skip(err)
	}
	backUp := func(what string) {
		t.Helper()
		if _, err := e.Backup(t.Context(), filepath.Join(t.TempDir(), "backup")); err == nil || !strings.Contains(err.Error(), "no longer the database that this server has open") {
			t.Errorf("%s: got %v", what, err)
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	backUp("nothing has the name")
	if left := enginetest.Glob(t, dir, "*"); len(left) > 0 {
		t.Errorf("made in another directory: %v", left)
	}
	other, lock := enginetest.OpenLocked(t, dir, datastore.Options{})
	enginetest.Put(t, other, "/b", "v")
	backUp("another has the name")
	if err := errors.Join(e.Close(), own.Close(), other.Close(), lock.Close()); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{dir, dir + "2"} {
		if err := enginetest.TryOpen(dir); err != nil {
			t.Error(err)
		}
	}
}

// Close ends what reads the database, such as a backup.
func TestCloseEndsBackups(t *testing.T) {
	e := enginetest.Open(t, "", datastore.Options{})
	reading, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- e.Source().View(context.Background(), func(ctx context.Context, _ *sqlitefile.Connection) error {
			close(reading)
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	<-reading
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, sqlitefile.ErrClosed) {
		t.Errorf("while it is closed: %v, want %v", err, sqlitefile.ErrClosed)
	}
	if _, err := e.Backup(t.Context(), filepath.Join(t.TempDir(), "b")); !errors.Is(err, sqlitefile.ErrClosed) {
		t.Errorf("after the close: %v, want %v", err, sqlitefile.ErrClosed)
	}
}

func TestBackupNeverOverwrites(t *testing.T) {
	dir := enginetest.Written(t, true)
	from, to := filepath.Join(dir, datastore.EngineFile), filepath.Join(t.TempDir(), "backup")
	if err := os.WriteFile(to, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Write(t.Context(), sqlitefile.ClosedFile(from), to); !errors.Is(err, backup.ErrExists) || !strings.Contains(err.Error(), to) {
		t.Errorf("got %v, want ErrExists naming the file", err)
	}
	if b, _ := os.ReadFile(to); string(b) != "mine" {
		t.Error("the file was overwritten")
	}
	other := to + ".2"
	if _, err := backup.Write(t.Context(), sqlitefile.ClosedFile(from), other); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(other); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want mode 600", info, err)
	}
	if left := enginetest.Glob(t, dir, "*-*"); len(left) > 0 {
		t.Errorf("files were made beside the database: %v", left)
	}
}
