package servers

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/karve-k8s/karve/datastore/directory"
)

// lockedDir is a directory with a lock that this process holds, and with what else is named.
func lockedDir(t *testing.T, more ...string) (string, *directory.Lock) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range more {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	return dir, lock
}

func TestRunning(t *testing.T) {
	one, first := lockedDir(t, "certs")
	other, _ := lockedDir(t, "certs")
	store, _ := lockedDir(t) // only a datastore's
	find := func() []Server {
		all, err := Running(one, other, store)
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(all, func(s Server) bool { return s.PID != os.Getpid() }) // others run beside this test
	}
	want := []Server{{one, os.Getpid()}, {other, os.Getpid()}}
	if got := find(); !slices.Equal(got, want) && !slices.Equal(got, []Server{want[1], want[0]}) {
		t.Errorf("got %v, want %v", got, want)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if got := find(); !slices.Equal(got, want[1:]) {
		t.Errorf("after one has stopped: got %v, want %v", got, want[1:])
	}
}
