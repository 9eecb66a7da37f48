package datastore

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
	// A name that an URL or a glob would take for something else.
	dir := filepath.Join(t.TempDir(), "a b?c#d%20e&f")
	lock, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	e, err := OpenEngine(lock, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if _, err := e.Put(t.Context(), PutRequest{Key: "a", Value: []byte("secret")}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"": 0o700, EngineFile: 0o600, EngineFile + "-wal": 0o600,
		EngineFile + ".ballast": 0o600, "lock": 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%q: mode %o, want %o", name, got, want)
		}
	}
}

// A server that is killed and started again at once meets the lock of the one
// that the kernel is still taking apart.
func TestLockWaitsForADyingHolder(t *testing.T) {
	dir := t.TempDir()
	dying, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(lockPatience/5, func() { dying.Close() })
	defer timer.Stop()
	lock, err := LockDir(dir)
	if err != nil {
		t.Fatalf("got %v, want the lock when its holder is gone", err)
	}
	lock.Close()
}

func TestDataSource(t *testing.T) {
	for path, want := range map[string]string{
		"/a b/x?y#z.db":   "file:///a%20b/x%3Fy%23z.db?_pragma=fullfsync%281%29&_pragma=synchronous%28FULL%29&mode=ro",
		"C:/Users/a/x.db": "file:///C:/Users/a/x.db?_pragma=fullfsync%281%29&_pragma=synchronous%28FULL%29&mode=ro",
	} {
		if got := dataSource(path, url.Values{"_pragma": {"synchronous(FULL)"}, "mode": {"ro"}}); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}

// macOS' fsync does not reach the disk: SQLite has to be told so on every connection.
func TestEveryConnectionAsksForFullSync(t *testing.T) {
	e, lock := openLocked(t, "", Options{})
	defer lock.Close()
	defer e.Close()
	if n, err := e.disk.writer.number("PRAGMA fullfsync"); n != 1 || err != nil {
		t.Errorf("the writer: fullfsync is %d (%v), want 1", n, err)
	}
	c, err := (&disk{path: filepath.Join(t.TempDir(), "x.db")}).connect(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if n, err := c.number("PRAGMA fullfsync"); n != 1 || err != nil {
		t.Errorf("a connection without options: fullfsync is %d (%v), want 1", n, err)
	}
}
