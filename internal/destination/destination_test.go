package destination

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	at := func(name ...string) string { return filepath.Join(append([]string{dir}, name...)...) }
	err := errors.Join(
		os.MkdirAll(at("data", "certs"), 0o700), os.Mkdir(at("data", "backups"), 0o700), os.Mkdir(at("data", "mvcc.db"), 0o700),
		os.WriteFile(at("data", "certs", "key"), nil, 0o600), os.WriteFile(at("file"), nil, 0o600), syscall.Mkfifo(at("fifo"), 0o600),
		os.Symlink("file", at("link")), os.Symlink("new", at("dangling")), os.Symlink("fifo", at("to-fifo")), os.Symlink("data", at("also-data")), os.Symlink("data/certs/key", at("to-key")),
	)
	if err != nil {
		t.Fatal(err)
	}
	both := Rules{Overwrite: true, Stream: true, Outside: []string{"", at("data")}, But: []string{at("data", "snapshot"), at("data", "backups")}}
	for name, want := range map[string]string{
		"file": "file", "new": "new", "link": "file", "dangling": "new", "sub/new": "sub/new",
		"data/snapshot": "data/snapshot", "also-data/backups/a": "also-data/backups/a",
		"fifo": "! not a regular file", "to-fifo": "! not a regular file", "/dev/null": "! not a regular file", "data": "! or - for standard output",
		"to-key": "! only karve itself", "also-data/certs/key": "! only karve itself", "data/new": "! only karve itself", "data/backups/a/b": "! only karve itself", "data/x/snapshot": "! only karve itself",
	} {
		path := name
		if !filepath.IsAbs(name) {
			path = at(name)
		}
		got, err := Find(path, both)
		if problem, wrong := strings.CutPrefix(want, "! "); wrong {
			if err == nil || !strings.Contains(err.Error(), problem) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: got %q, %v, want an error with %q", name, got, err, problem)
			}
		} else if err != nil || got != at(want) {
			t.Errorf("%s: got %q, %v, want %s", name, got, err, want)
		}
	}
	for _, name := range []string{"file", "link"} {
		if got, err := Find(at(name), Rules{}); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s, which exists: got %q, %v", name, got, err)
		}
	}
	if _, err := Find(at("dangling"), Rules{}); err != nil {
		t.Errorf("a link to nothing: %v", err)
	}
}

// Root writes as the user in whose directory a file is, also below that.
func TestAct(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can act as somebody else")
	}
	const stranger = 54321
	dir := t.TempDir()
	theirs, below := filepath.Join(dir, "theirs"), filepath.Join(dir, "theirs", "below")
	if err := errors.Join(os.MkdirAll(below, 0o700), os.Chown(theirs, stranger, stranger)); err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]int{dir: 0, theirs: stranger, below: stranger} {
		got := -1
		if err := Act(filepath.Join(in, "file"), func() error { got = os.Geteuid(); return nil }); err != nil || got != want {
			t.Errorf("%s: as %d, %v, want %d", in, got, err, want)
		}
	}
}

// What another user has placed does not decide where a file goes, nor who gets it.
func TestWhatAnotherUserPlaced(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make files of another user")
	}
	const stranger = 65001
	for what, place := range map[string]func(path string) error{
		"link":          func(path string) error { return os.Symlink("victim", path) },
		"dangling link": func(path string) error { return os.Symlink("new", path) },
		"file":          func(path string) error { return os.WriteFile(path, nil, 0o600) },
	} {
		dir := t.TempDir()
		path, linked, own := filepath.Join(dir, "file"), filepath.Join(dir, "linked"), filepath.Join(t.TempDir(), "own")
		err := errors.Join(place(path), os.Lchown(path, stranger, stranger), os.Chmod(dir, 0o777|os.ModeSticky), os.Symlink(dir, linked), os.Lchown(linked, stranger, stranger))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{path, filepath.Join(linked, "victim")} {
			if got, err := Find(name, Rules{Overwrite: true}); err == nil || !strings.Contains(err.Error(), "65001") || !strings.Contains(err.Error(), "remove it, or name") {
				t.Errorf("%s, %s: got %s, %v, want an error with the owner and the remedy", what, name, got, err)
			}
		}
		// A user's own directory is where root may write for that user, and root's own links count.
		if err := errors.Join(os.WriteFile(own, nil, 0o600), os.Chown(own, stranger, stranger)); err != nil {
			t.Fatal(err)
		}
		if got, err := Find(own, Rules{Overwrite: true}); err != nil || got != own {
			t.Errorf("a user's own: got %s, %v", got, err)
		}
	}
}
