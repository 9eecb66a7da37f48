package servers

import (
	"os"
	"path/filepath"
	"testing"
)

// Root takes no directory for its own in which another user can do what a server does.
func TestRootsOwn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root has to be careful")
	}
	for mode, want := range map[os.FileMode]int{0o700: 1, 0o711: 1, 0o755: 1, 0o777: 0, 0o777 | os.ModeSticky: 0} {
		dir, _ := lockedDir(t, "certs")
		if err := os.Symlink("/etc/passwd", filepath.Join(dir, KubeconfigName)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		if got := Owned([]Server{{dir, os.Getpid()}}); len(got) != want {
			t.Errorf("%v: got %q, want %d", mode, got, want)
		}
	}
	dir, _ := lockedDir(t, "certs")
	if err := os.WriteFile(filepath.Join(dir, KubeconfigName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, 4711, 0); err != nil {
		t.Fatal(err)
	}
	if got := Owned([]Server{{dir, os.Getpid()}}); len(got) != 0 {
		t.Errorf("another user's: got %q", got)
	}
}
