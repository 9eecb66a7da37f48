//go:build unix

package certs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What another user has placed does not decide where the administrator's kubeconfig goes, nor who gets it.
func TestWhatAnotherUserPlaced(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make files of another user")
	}
	s, _ := newTestbed(t).ensure(t)
	const stranger = 65001
	place := func(t *testing.T, dir, what string, mode os.FileMode) (path, victim string) {
		victim, path = filepath.Join(dir, "victim"), filepath.Join(dir, "config")
		if err := os.WriteFile(victim, []byte("kept"), 0o600); err != nil {
			t.Fatal(err)
		}
		var err error
		placed := path
		switch what {
		case "link":
			err = os.Symlink(victim, path)
		case "dangling link":
			err = os.Symlink(filepath.Join(dir, "new"), path)
		case "directory link":
			placed, path = filepath.Join(dir, "there"), filepath.Join(dir, "there", "victim")
			err = os.Symlink(dir, placed)
		case "file":
			err = os.WriteFile(path, nil, 0o600)
		}
		if err == nil {
			err = os.Lchown(placed, stranger, stranger)
		}
		if err == nil {
			err = os.Chmod(dir, mode)
		}
		if err != nil {
			t.Fatal(err)
		}
		return path, victim
	}
	for _, what := range []string{"link", "dangling link", "directory link", "file"} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			path, victim := place(t, dir, what, 0o777|os.ModeSticky)
			before, _ := os.ReadDir(dir)
			err := KubeconfigFiles{Path: filepath.Join(t.TempDir(), "own"), Copy: path}.Write(s.Kubeconfig(Admin, "https://127.0.0.1:6443"))
			if err == nil || !strings.Contains(err.Error(), "--write-kubeconfig: ") || !strings.Contains(err.Error(), "65001") || !strings.Contains(err.Error(), "remove it, or name") {
				t.Errorf("got %v, want an error that names the option, the owner and the remedy", err)
			}
			if text := read(t, victim); text != "kept" {
				t.Errorf("the file that the link means was written: %d bytes", len(text))
			}
			if after, _ := os.ReadDir(dir); len(after) != len(before) {
				t.Errorf("files were made: %v", after)
			}
		})
	}
	// A user's own directory is where root may write for that user.
	t.Run("own directory", func(t *testing.T) {
		path, _ := place(t, t.TempDir(), "file", 0o755)
		if err := WriteKubeconfig(path, 0, s.Kubeconfig(Admin, "https://127.0.0.1:6443")); err != nil {
			t.Error(err)
		}
	})
	t.Run("link of root", func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "link")
		if err := os.Symlink("real", path); err != nil {
			t.Fatal(err)
		}
		if err := WriteKubeconfig(path, 0, s.Kubeconfig(Admin, "https://127.0.0.1:6443")); err != nil {
			t.Error(err)
		}
		if to, _ := os.Readlink(path); to != "real" || read(t, filepath.Join(dir, "real")) == "" {
			t.Errorf("the link is now %q", to)
		}
	})
}
