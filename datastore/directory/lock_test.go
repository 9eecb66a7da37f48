package directory

import (
	"errors"
	"fmt"
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
		_, err := Acquire(dir)
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

	_, err = Acquire(dir)
	if want := fmt.Sprintf("process %d", child.Process.Pid); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want ErrLocked that names %s", err, want)
	}
	in.Close()
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	lock, err := Acquire(dir)
	if err != nil {
		t.Fatalf("after its holder is gone: %v", err)
	}
	defer lock.Close()
	if _, err := Acquire(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("a second time in one process: got %v, want ErrLocked", err)
	}
}

// A server that is killed and started again at once meets the lock of the one
// that the kernel is still taking apart.
func TestLockWaitsForADyingHolder(t *testing.T) {
	dir := t.TempDir()
	dying, err := Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(lockPatience/5, func() { dying.Close() })
	defer timer.Stop()
	lock, err := Acquire(dir)
	if err != nil {
		t.Fatalf("got %v, want the lock when its holder is gone", err)
	}
	lock.Close()
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
	lock, err := Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	ask(os.Getpid(), true)
	if err := lock.Check(); err != nil {
		t.Error(err)
	}
	if err := os.Rename(dir, dir+"2"); err != nil {
		t.Skip(err)
	}
	if err := lock.Check(); err == nil || errors.Is(err, ErrReplaced) || !strings.Contains(err.Error(), dir) {
		t.Errorf("its name is gone: got %v, want an error that names %s", err, dir)
	}
	if other, err := Acquire(dir); err != nil || !errors.Is(lock.Check(), ErrReplaced) {
		t.Errorf("another has the name: got %v, want ErrReplaced (%v)", lock.Check(), err)
	} else {
		other.Close()
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	ask(0, false) // though the pid is still written there
}
