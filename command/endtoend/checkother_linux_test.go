package endtoend

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/karve-k8s/karve/datastore"
)

// With a database of the user's, karve check opens no database in the current directory.
func TestCheckOpensNoDatabaseOfTheCurrentDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, datastore.EngineFile)
	if err := os.WriteFile(file, []byte("no database"), 0o600); err != nil {
		t.Fatal(err)
	}
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, file, unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	opened := func() bool {
		t.Helper()
		_, err := unix.Read(watch, make([]byte, 4096))
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
		return err == nil
	}
	cmd := command(t, "karve", "check", "--secure-port", "0", "--insecure-port", "-1", "--data-dir", t.TempDir(), "--datastore-endpoint", "postgres://database.example/karve")
	cmd.Dir = dir
	if got := finish(t, cmd); got.stdout == "" {
		t.Fatalf("karve check found nothing: %+v", got)
	}
	if opened() {
		t.Errorf("karve check opened %s", file)
	}
	if _, err := os.ReadFile(file); err != nil || !opened() {
		t.Errorf("the test does not notice that the file is opened: %v", err)
	}
}
