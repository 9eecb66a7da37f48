package directory

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// abandoned makes a directory that a killed process of this user has left.
func abandoned(t *testing.T, above, name string) string {
	t.Helper()
	dir := filepath.Join(above, name)
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, lockName), nil, 0o600), os.WriteFile(filepath.Join(dir, fileName), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A sweep opens nothing that others have placed.
func TestSweepTouchesOnlyOwnDirectories(t *testing.T) {
	above := t.TempDir()
	target := filepath.Join(above, "target")
	if err := syscall.Mkfifo(target, 0o600); err != nil {
		t.Fatal(err)
	}
	link := abandoned(t, above, ".karve-1.partial")
	if err := errors.Join(os.Remove(filepath.Join(link, lockName)), os.Symlink(target, filepath.Join(link, lockName))); err != nil {
		t.Fatal(err)
	}
	stay := []string{link}
	if os.Geteuid() == 0 {
		others := abandoned(t, above, ".karve-2.partial")
		if err := os.Chown(others, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		stay = append(stay, others)
	}
	gone := abandoned(t, above, ".karve-4.partial")
	RemoveAbandoned(above)
	for _, dir := range stay {
		if _, err := os.Stat(filepath.Join(dir, fileName)); err != nil {
			t.Errorf("%s was swept: %v", dir, err)
		}
	}
	if _, err := os.Stat(gone); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s stays: %v", gone, err)
	}
}

func TestMountedBelow(t *testing.T) {
	const mounts = `36 35 98:0 / /tmp/a\040b/.karve-1.partial/usb rw,noatime master:1 - ext4 /dev/root rw` + "\n"
	for dir, want := range map[string]bool{"/tmp/a b/.karve-1.partial": true, "/tmp/a b/.karve-1.partial/usb": false, "/tmp/a b/.karve-2.partial": false} {
		if got := haveBelow(mounts, dir); got != want {
			t.Errorf("%s: got %v, want %v", dir, got, want)
		}
	}
	if !mountedBelow("/") { // /proc
		t.Error("nothing is mounted below /")
	}
}

// If another user puts a directory of theirs in place of a temporary one, nothing is made in that.
func TestExchangedTempDir(t *testing.T) {
	above, theirs := t.TempDir(), t.TempDir()
	if err := os.Chmod(above, 0o777); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(above, "file")
	err := Place(to, false, func(p *TempDir) error {
		names, _ := filepath.Glob(filepath.Join(above, ".karve-*"))
		if err := errors.Join(os.Rename(names[0], filepath.Join(above, "moved")), os.Symlink(theirs, names[0])); err != nil {
			return err
		}
		return os.WriteFile(p.File(), []byte("whole"), 0o600)
	})
	if text, readErr := os.ReadFile(to); err != nil || string(text) != "whole" {
		t.Errorf("got %v, and %q, %v", err, text, readErr)
	}
	if entries, _ := os.ReadDir(theirs); len(entries) > 0 {
		t.Errorf("where the link leads is %v", entries)
	}
	if entries, _ := os.ReadDir(filepath.Join(above, "moved")); len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
}

// No lock is taken through a link, which another user of the directory may have made.
func TestLockIsNoLink(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	if err := errors.Join(os.WriteFile(target, nil, 0o600), os.Symlink(target, filepath.Join(dir, "lock"))); err != nil {
		t.Fatal(err)
	}
	if _, err := Acquire(dir); err == nil {
		t.Error("it was taken")
	}
	if _, _, err := Holder(dir); err == nil {
		t.Error("it was read")
	}
}
