package datastore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// lockVariable names a directory for a child of this test to lock.
const lockVariable = "KARVE_TEST_LOCK"

func init() {
	if dir := os.Getenv(lockVariable); dir != "" {
		_, err := LockDir(dir)
		fmt.Println(err)
		os.Stdin.Read(make([]byte, 1)) // hold it until the parent closes the pipe
		os.Exit(0)
	}
}

func open(t *testing.T, dir string) (*Lock, *Store) {
	t.Helper()
	lock, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	store, err := Open(context.Background(), lock)
	if err != nil {
		t.Fatal(err)
	}
	return lock, store
}

func TestLockNamesTheProcessThatHoldsIt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "by", "it")
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), lockVariable+"="+dir)
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 64)
	n, _ := out.Read(answer)
	if got := strings.TrimSpace(string(answer[:n])); got != "<nil>" {
		t.Fatalf("the child could not lock: %s", got)
	}

	_, err = LockDir(dir)
	if want := fmt.Sprintf("process %d", child.Process.Pid); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want ErrLocked that names %s", err, want)
	}
	in.Close()
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	lock, err := LockDir(dir)
	if err != nil {
		t.Fatalf("after its holder is gone: %v", err)
	}
	defer lock.Close()
	if _, err := LockDir(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("a second time in one process: got %v, want ErrLocked", err)
	}
}

func TestFilesAreForTheOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	_, store := open(t, dir)
	db := sql.OpenDB(store.Connector())
	defer db.Close()
	if _, err := db.Exec(`INSERT INTO kine(name) VALUES('/registry/x')`); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"": 0o700, FileName: 0o600, FileName + "-wal": 0o600, FileName + "-shm": 0o600, "lock": 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%q: mode %o, want %o", name, got, want)
		}
	}
}

func TestConnectionsWriteThrough(t *testing.T) {
	_, store := open(t, t.TempDir())
	db := sql.OpenDB(store.Connector())
	defer db.Close()
	for pragma, want := range map[string]string{"synchronous": "2", "journal_mode": "wal"} { // 2 is FULL
		var got string
		if err := db.QueryRow(`PRAGMA ` + pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s: got %q (%v), want %q", pragma, got, err, want)
		}
	}
}

func TestUniqueViolationIsTold(t *testing.T) {
	_, store := open(t, t.TempDir())
	db := sql.OpenDB(store.Connector())
	defer db.Close()
	const insert = `INSERT INTO kine(name, prev_revision) VALUES('a', 1)`
	if _, err := db.Exec(insert); err != nil {
		t.Fatal(err)
	}
	_, err := db.Exec(insert)
	if !IsUniqueViolation(err) {
		t.Errorf("two writers after one revision: got %v, want a unique violation", err)
	}
	if ErrorCode(err) == "" || ErrorCode(nil) != "" {
		t.Errorf("ErrorCode: got %q and %q", ErrorCode(err), ErrorCode(nil))
	}
	if _, err := db.Exec(`INSERT INTO nowhere VALUES(1)`); err == nil || IsUniqueViolation(err) {
		t.Errorf("another error: got %v, want one that is no unique violation", err)
	}
}

func TestDamagedFileIsRefusedAndLeftAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, FileName)
	garbage := bytes.Repeat([]byte("no database "), 1000)
	if err := os.WriteFile(path, garbage, 0o600); err != nil {
		t.Fatal(err)
	}
	lock, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	_, err = Open(context.Background(), lock)
	if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v, want ErrCorrupt that names %s", err, path)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, garbage) {
		t.Errorf("the file was changed (%v)", err)
	}
}

func TestDirectoryNamesWithSpecialCharacters(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a b?c#d%20e&f")
	_, store := open(t, dir)
	db := sql.OpenDB(store.Connector())
	defer db.Close()
	if err := db.Ping(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(store.Path()); err != nil {
		t.Errorf("the database is elsewhere: %v", err)
	}
}
