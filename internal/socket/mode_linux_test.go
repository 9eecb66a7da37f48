package socket

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A socket has its mode from the start: whoever connected before a chmod would stay connected.
func TestModeBeforeTheName(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	path := filepath.Join(t.TempDir(), "s")
	l, err := (&net.ListenConfig{Control: private}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("got %v, %v, want a socket with mode 0600", info.Mode(), err)
	}
}
