package socket

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/control"
)

// The kernel takes only short paths for sockets. A data directory may have a longer one, and so may the
// temporary directory.
func TestListen(t *testing.T) {
	for name, dir := range map[string]string{
		"a short path": "s",
		"a long path":  filepath.Join(strings.Repeat("x", 100), strings.Repeat("y", 100)),
	} {
		t.Run(name, func(t *testing.T) {
			temp, err := os.MkdirTemp("", "karve-test-") // t.TempDir is longer
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(temp) })
			dir := filepath.Join(temp, dir)
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if runtime.GOOS == "linux" { // others need a short one
				t.Setenv("TMPDIR", dir)
			}
			path := filepath.Join(dir, "name.sock")
			if err := os.WriteFile(path, nil, 0o600); err != nil { // somebody else's
				t.Fatal(err)
			}
			if l, err := Listen(dir, "name.sock"); err == nil {
				l.Close()
				t.Errorf("a file at %s was replaced", path)
			}
			left, err := net.Listen("unix", filepath.Join(temp, "left"))
			if err != nil {
				t.Fatal(err)
			}
			left.(*net.UnixListener).SetUnlinkOnClose(false)
			left.Close()
			if err := os.Rename(filepath.Join(temp, "left"), path); err != nil { // by a crash
				t.Fatal(err)
			}
			l, err := Listen(dir, "name.sock")
			if err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeSocket|0o600 {
				t.Errorf("%s: %v (%v), want a socket with mode 0600", path, info, err)
			}
			short, release, err := control.SocketPath(path)
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			for _, at := range []string{short, l.Path()} {
				connection, err := net.Dial("unix", at)
				if err != nil {
					t.Errorf("connect to %s: %v", at, err)
					continue
				}
				connection.Close()
			}
			if err := os.Rename(path, path+"2"); err != nil { // as if its directory had another name
				t.Fatal(err)
			}
			other, err := Listen(dir, "name.sock")
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(path); err != nil {
				t.Errorf("the socket of another server: %v", err)
			}
			if err := errors.Join(other.Close(), os.Remove(path+"2")); err != nil {
				t.Error(err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v (%v)", left, err)
			}
		})
	}
}
