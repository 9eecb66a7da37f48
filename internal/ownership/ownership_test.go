package ownership

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const stranger = 54321 // no user of the machine

// foreignDir returns a directory of stranger's that every user can reach.
func foreignDir(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can act as somebody else")
	}
	dir, err := os.MkdirTemp("", "ownership-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := errors.Join(os.Chown(dir, stranger, stranger), os.Chmod(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func wantOwner(t *testing.T, path string, want int) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := Of(info); got.UID != want || got.GID != want {
		t.Errorf("%s: got %+v, want user and group %d", path, got, want)
	}
}

// Files get the directory's owner, on whatever thread they are made. Afterwards, root is
// root again.
func TestActMakesFilesOfTheOwner(t *testing.T) {
	dir := foreignDir(t)
	err := Act(dir, func() error {
		made := make(chan error)
		go func() { made <- os.Mkdir(filepath.Join(dir, "sub"), 0o700) }()
		return errors.Join(<-made, os.WriteFile(filepath.Join(dir, "sub", "file"), nil, 0o600))
	})
	if err != nil {
		t.Fatal(err)
	}
	wantOwner(t, filepath.Join(dir, "sub"), stranger)
	wantOwner(t, filepath.Join(dir, "sub", "file"), stranger)
	if os.Geteuid() != 0 || os.Getegid() != 0 {
		t.Errorf("afterwards: user %d, group %d, want root", os.Geteuid(), os.Getegid())
	}
	if err := os.WriteFile(filepath.Join(dir, "root"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantOwner(t, filepath.Join(dir, "root"), 0)
}

// Opening a FIFO waits for another process.
func TestActRefusesFIFOs(t *testing.T) {
	dir := foreignDir(t)
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "certs"), 0o755), syscall.Mkfifo(filepath.Join(dir, "certs", "a.key"), 0o600)); err != nil {
		t.Fatal(err)
	}
	err := Act(dir, func() error { t.Error("it was called"); return nil })
	if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "certs", "a.key")+" is a FIFO") {
		t.Errorf("got %v, want an error that names the FIFO", err)
	}
}

// A link of the owner's does not lead root to anything that the owner cannot reach.
func TestActFollowsNoLinkToRootsFiles(t *testing.T) {
	dir := foreignDir(t)
	secret := filepath.Join(t.TempDir(), "shadow")
	if err := os.WriteFile(secret, []byte("secret"), 0o640); err != nil { // root's group may read it
		t.Fatal(err)
	}
	link := filepath.Join(dir, "mvcc.db")
	if err := os.Symlink(secret, link); err != nil {
		t.Fatal(err)
	}
	for what, body := range map[string]func() error{
		"read":  func() error { _, err := os.ReadFile(link); return err },
		"write": func() error { return os.WriteFile(link, []byte("mine"), 0o600) },
		"chown": func() error { return os.Chown(link, stranger, stranger) },
	} {
		if err := Act(dir, body); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s through the link: got %v, want no permission", what, err)
		}
	}
	if text, err := os.ReadFile(secret); err != nil || string(text) != "secret" {
		t.Errorf("the file behind the link: got %q, %v", text, err)
	}
	wantOwner(t, secret, 0)
}

func TestActExplainsWhatRootLeft(t *testing.T) {
	dir := foreignDir(t)
	path := filepath.Join(dir, "left")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := Act(dir, func() error { _, err := os.ReadFile(path); return err })
	if err == nil || !strings.Contains(err.Error(), path+" belongs to root (uid 0)") || !strings.Contains(err.Error(), "chown -hR 54321:54321 "+dir) {
		t.Errorf("got %v, want the file, its owner and the remedy", err)
	}
	plain := errors.New("something else")
	if got := Explain(plain, dir); got != plain {
		t.Errorf("got %v, want %v as it is", got, plain)
	}
}

// In root's own directories, and in those that do not exist, nothing changes.
func TestActAsRootInRootsDirectories(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can act as somebody else")
	}
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Join(dir, "missing")} {
		uid := -1
		if err := Act(d, func() error { uid = os.Geteuid(); return nil }); err != nil || uid != 0 {
			t.Errorf("%s: acted as %d, %v, want root", d, uid, err)
		}
	}
}

func TestSame(t *testing.T) {
	dir, other := foreignDir(t), foreignDir(t)
	if !Same(dir, other) {
		t.Errorf("two directories of one user: got false")
	}
	if roots := t.TempDir(); Same(dir, roots) || Same(roots, roots) {
		t.Errorf("a directory of root's: got true")
	}
}

func TestCheck(t *testing.T) {
	dir := foreignDir(t)
	err := Check(dir)
	if !errors.Is(err, ErrForeign) {
		t.Fatalf("root in a directory of another user: got %v, want ErrForeign", err)
	}
	for _, want := range []string{dir, "uid 54321", "setpriv --reuid 54321", "chown -hR 0:0 " + dir} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %q, want %q in it", err, want)
		}
	}
	if err := Check(t.TempDir()); err != nil {
		t.Errorf("root in a directory of root's: %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if err := Act(dir, func() error { return Check(dir) }); err != nil {
		t.Errorf("the owner: %v", err)
	}
}
