package sshkeys

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	keyA  = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGf2C5Y2pZ9m8bqRj1Vw7bU9m4yFZk0v9S4dQF0yJ2aB"
	lineA = "restrict,port-forwarding " + keyA + " karve@one"
	lineB = "restrict,port-forwarding ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKf2C5Y2pZ9m8bqRj1Vw7bU9m4yFZk0v9S4dQF0yJ2aB karve@two"
	mine  = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOf2C5Y2pZ9m8bqRj1Vw7bU9m4yFZk0v9S4dQF0yJ2aB me@laptop\n"
)

// accountOf has a home directory. If root tests, it is another user's.
func accountOf(t *testing.T) *Account {
	t.Helper()
	home, err := os.MkdirTemp("/tmp", "karve-home-") // t.TempDir is in a directory that other users cannot enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	a := &Account{Name: "karve-ssh", Home: home, UID: os.Geteuid(), GID: os.Getegid()}
	if a.UID == 0 {
		a.UID, a.GID = 12345, 12345
	}
	if err := os.Chown(home, a.UID, a.GID); err != nil {
		t.Fatal(err)
	}
	return a
}

// What is added is taken away, and nothing else, whatever was there.
func TestKeysComeAndGo(t *testing.T) {
	t.Parallel()
	byHand := `from="192.0.2.1",restrict,port-forwarding ` + keyA + " by hand\n"
	for name, tc := range map[string]struct{ before, want, after string }{
		"there is nothing":       {"", lineA + "\n" + lineB + "\n", ""},
		"somebody's own keys":    {mine, mine + lineA + "\n" + lineB + "\n", mine},
		"no newline at the end":  {strings.TrimSuffix(mine, "\n"), mine + lineA + "\n" + lineB + "\n", mine},
		"one was added by hand":  {byHand, byHand + lineB + "\n", byHand},
		"one is commented out":   {"#" + lineA + "\n", "#" + lineA + "\n" + lineA + "\n" + lineB + "\n", "#" + lineA + "\n"},
		"both were there before": {lineA + "\n" + lineB + "\n", lineA + "\n" + lineB + "\n", lineA + "\n" + lineB + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := accountOf(t)
			file := filepath.Join(a.Home, File)
			if tc.before != "" {
				if _, err := a.run(t.Context(), "mkdir .ssh && cat >.ssh/authorized_keys && chmod 640 .ssh/authorized_keys", []string{strings.TrimSuffix(tc.before, "\n")}); err != nil {
					t.Fatal(err)
				}
				if err := os.Truncate(file, int64(len(tc.before))); err != nil {
					t.Fatal(err)
				}
			}
			added, err := a.Missing(t.Context(), []string{lineA, lineB})
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Add(t.Context(), added); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(file); err != nil || string(got) != tc.want {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
			if again, err := a.Missing(t.Context(), []string{lineA, lineB}); err != nil || len(again) > 0 {
				t.Errorf("missing afterwards: %q, %v", again, err)
			}
			if len(added) > 0 {
				if err := a.Remove(t.Context(), added); err != nil {
					t.Fatal(err)
				}
			}
			got, err := os.ReadFile(file)
			if string(got) != tc.after || tc.after != "" && err != nil {
				t.Errorf("after the removal: got %q, %v, want %q", got, err, tc.after)
			}
			if info, err := os.Stat(file); err == nil && info.Mode().Perm() != 0o640 {
				t.Errorf("the file has mode %04o now", info.Mode().Perm())
			}
			if left, err := os.ReadDir(filepath.Join(a.Home, ".ssh")); len(left) > 1 || tc.after == "" && !os.IsNotExist(err) {
				t.Errorf("left over: %v, %v", left, err)
			}
		})
	}
}

// A user may keep the file elsewhere: the link stays, also to a file that is empty then.
func TestALinkOfTheUsersStays(t *testing.T) {
	t.Parallel()
	a := accountOf(t)
	if _, err := a.run(t.Context(), "mkdir .ssh dotfiles && : >dotfiles/keys && ln -s ../dotfiles/keys .ssh/authorized_keys", nil); err != nil {
		t.Fatal(err)
	}
	for _, do := range []func(context.Context, []string) error{a.Add, a.Remove} {
		if err := do(t.Context(), []string{lineA}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(filepath.Join(a.Home, "dotfiles/keys"))
	to, gone := os.Readlink(filepath.Join(a.Home, File))
	left, _ := os.ReadDir(filepath.Join(a.Home, "dotfiles"))
	if err != nil || len(got) > 0 || gone != nil || to != "../dotfiles/keys" || len(left) != 1 {
		t.Errorf("got %q and %v, the link leads to %q, %v; %d files are beside it", got, err, to, gone, len(left))
	}
}

// A user who puts a link into its home directory gets no more than the user's own rights.
func TestLinksLeadNowhere(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root has files that the user may not change")
	}
	a := accountOf(t)
	roots := filepath.Join(t.TempDir(), "authorized_keys")
	if err := os.WriteFile(roots, []byte("roots\n"+lineA+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(roots), filepath.Join(a.Home, ".ssh")); err != nil {
		t.Fatal(err)
	}
	if err := a.Add(t.Context(), []string{lineB}); err == nil {
		t.Error("a line was added through a link")
	}
	_ = a.Remove(t.Context(), []string{lineA})
	if got, err := os.ReadFile(roots); err != nil || string(got) != "roots\n"+lineA+"\n" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	_, err := Find("no-such-user")
	for _, want := range []string{"--ssh-user no-such-user", "no such user", "useradd --create-home --shell /usr/sbin/nologin no-such-user"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	if root, err := Find("root"); err != nil || root.UID != 0 || !filepath.IsAbs(root.Home) {
		t.Errorf("got %+v, %v", root, err)
	}
}
