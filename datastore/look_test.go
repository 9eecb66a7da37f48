package datastore

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A look has to say, of a live file and of one at rest, what a scan of all says.
func TestLookAtAgreesWithScan(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, EngineFile)
	if _, err := LookAt(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: got %v", err)
	}
	lock, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	e, err := OpenEngine(lock, Options{})
	if err != nil {
		t.Fatal(err)
	}
	compare := func(when string) {
		t.Helper()
		look, scan := e.Look, e.FileStats
		if when == "at rest" {
			look = func() (*Look, error) { return LookAt(path) }
			scan = func(ctx context.Context) (*FileStats, error) { return ReadStats(ctx, path) }
		}
		got, err := look()
		if err != nil {
			t.Fatal(err)
		}
		want, err := scan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got.Revision != want.Revision || got.SchemaVersion != want.SchemaVersion || got.Bytes != want.FileBytes || got.WALBytes != want.WALBytes {
			t.Errorf("%s: got %+v, want the figures of %+v", when, got, want)
		}
	}
	compare("new")
	for range 5 {
		if _, err := e.Put(t.Context(), PutRequest{Key: "/a", Value: []byte("v")}); err != nil {
			t.Fatal(err)
		}
	}
	compare("written to")
	if look, _ := e.Look(); look.Revision != 6 {
		t.Errorf("revision: got %d, want 6", look.Revision)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	compare("at rest")
}

func TestHolder(t *testing.T) {
	dir := t.TempDir()
	ask := func(wantPID int, want bool) {
		t.Helper()
		if pid, held, err := Holder(dir); pid != wantPID || held != want || err != nil {
			t.Errorf("got %d, %v, %v, want %d, %v", pid, held, err, wantPID, want)
		}
	}
	ask(0, false)
	lock, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	ask(os.Getpid(), true)
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	ask(0, false) // though the pid is still written there
}

func TestLastBackup(t *testing.T) {
	path := filepath.Join(t.TempDir(), EngineFile)
	if got, err := LastBackup(path); got != nil || err != nil {
		t.Errorf("before the first: got %+v, %v, want nothing", got, err)
	}
	now := time.Date(2027, 3, 4, 5, 6, 7, 8, time.UTC)
	for revision := range int64(2) { // the second replaces the first
		if err := RecordBackup(&Copy{From: path, To: "/backups/a.db", Revision: revision, Bytes: 4096}, now); err != nil {
			t.Fatal(err)
		}
	}
	got, err := LastBackup(path)
	if want := (BackupRecord{now.Truncate(time.Second), "/backups/a.db", 1, 4096}); err != nil || *got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("left behind: %v, want the record only", entries)
	}
	if err := os.WriteFile(backupRecord(path), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := LastBackup(path); err == nil {
		t.Errorf("a damaged record: got %+v, want an error", got)
	}
}
