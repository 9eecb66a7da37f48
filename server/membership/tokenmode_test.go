package membership

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A FIFO without a writer must not keep a server from starting.
func TestReadTokenFromAFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadToken(path); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("got %v, want it refused", err)
	}
}

func TestReadTokenOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file to another user")
	}
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(NewToken()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 4711, 4711); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadToken(path); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("belongs to user 4711, and this process runs as user 0: run chown 0 %s", path)) {
		t.Errorf("got %v, want it refused", err)
	}
}
