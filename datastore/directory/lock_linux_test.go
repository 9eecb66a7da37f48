package directory

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Whoever made it could keep every command waiting.
func TestLockThatIsAFIFO(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "lock"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, held := Holder(dir)
	_, acquired := Acquire(dir)
	for _, err := range []error{held, acquired} {
		if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "lock")+" is not a regular file") {
			t.Errorf("got %v, want an error that names the file", err)
		}
	}
}

// A process of another PID namespace has another number in this one, or none.
func TestHolderOfAnotherPIDNamespace(t *testing.T) {
	dir := t.TempDir()
	lock, err := Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	path := filepath.Join(dir, "lock")
	own, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text string
		want int
	}{{string(own), os.Getpid()}, {"7\n", 7}, {"", 0}, {"7 pid:[1]\n", 0}} { // earlier releases wrote the number alone
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if pid, held, err := Holder(dir); pid != c.want || !held || err != nil {
			t.Errorf("%q: got %d, %v, %v, want %d", c.text, pid, held, err, c.want)
		}
	}
	if _, err := Acquire(dir); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "is held by another process") {
		t.Errorf("got %v", err)
	}
}
