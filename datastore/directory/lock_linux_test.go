package directory

import (
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
