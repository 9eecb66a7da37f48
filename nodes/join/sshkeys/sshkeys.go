// Package sshkeys lets a server log in to this machine: it adds lines to a user's authorized_keys, and takes them away again.
//
// Everything in a home directory is its user's, who may replace a file by a link to somebody else's at any time. So a
// process of that user does all of it, and never root.
package sshkeys

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/karve-k8s/karve/internal/setup"
	"github.com/karve-k8s/karve/nodes/tunnels"
)

// File is where sshd looks for a user's keys, in the home directory.
const File = ".ssh/authorized_keys"

// Account is the user as whom the server logs in.
type Account struct {
	Name, Home string
	UID, GID   int
}

// Access is what was added, for the record of a node.
type Access struct {
	User  string   `json:"user"`
	Lines []string `json:"lines"`
}

// ErrNoUser means that this machine has no such user.
var ErrNoUser = errors.New("this machine has no such user")

// Find returns a user's account. It refuses the server's own: its sockets make this user an administrator.
func Find(name string) (*Account, error) {
	u, err := user.Lookup(name)
	if _, unknown := errors.AsType[user.UnknownUserError](err); unknown {
		return nil, fmt.Errorf("--ssh-user %s: %w: make it with `useradd --create-home --shell /usr/sbin/nologin %[1]s`, or correct the name", name, ErrNoUser)
	} else if err != nil {
		return nil, fmt.Errorf("--ssh-user %s: %w", name, err)
	}
	a := &Account{Name: name, Home: u.HomeDir}
	var wrong [2]error
	a.UID, wrong[0] = strconv.Atoi(u.Uid)
	a.GID, wrong[1] = strconv.Atoi(u.Gid)
	if err := errors.Join(wrong[:]...); err != nil {
		return nil, fmt.Errorf("--ssh-user %s: %w", name, err)
	}
	if _, err := os.Lstat(filepath.Join(a.Home, setup.ServerMarker)); err == nil {
		return nil, fmt.Errorf("--ssh-user %s: this is the account of the Karve server (it has %s): make another user for SSH with `useradd --create-home --shell /usr/sbin/nologin karve-ssh`", name, filepath.Join(a.Home, setup.ServerMarker))
	}
	return a, nil
}

// Missing returns those lines whose keys the user's file does not have.
func (a *Account) Missing(ctx context.Context, lines []string) ([]string, error) {
	text, err := a.run(ctx, `[ ! -e .ssh/authorized_keys ] || head -c 1048576 .ssh/authorized_keys`, nil)
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, line := range lines {
		if there, _ := tunnels.Authorizes(text, line); !there {
			missing = append(missing, line)
		}
	}
	return missing, nil
}

// Add adds lines to the user's file.
func (a *Account) Add(ctx context.Context, lines []string) error {
	_, err := a.run(ctx, `mkdir -p .ssh && touch .ssh/authorized_keys || exit
		[ -z "$(tail -c 1 .ssh/authorized_keys)" ] || echo >>.ssh/authorized_keys
		cat >>.ssh/authorized_keys`, lines)
	return err
}

// Remove takes lines away again. What is empty then goes, too, unless it is behind a link of the user's.
func (a *Account) Remove(ctx context.Context, lines []string) error {
	_, err := a.run(ctx, `[ -f .ssh/authorized_keys ] || exit 0
		file=$(readlink -f .ssh/authorized_keys) && new=$(mktemp "$file.XXXXXX") || exit
		trap 'rm -f "$new"' EXIT
		grep -vxF -f - "$file" >"$new" || [ $? = 1 ] || exit
		if [ ! -s "$new" ] && [ ! -L .ssh/authorized_keys ]; then rm "$new" "$file" && { rmdir .ssh 2>/dev/null || :; }; exit; fi
		chmod --reference="$file" "$new" && sync "$new" && mv "$new" "$file"`, lines)
	return err
}

// limit is how long a script may take: the user can let it wait for a FIFO.
const limit = 20 * time.Second

// run runs a script of sh as the user in the home directory, with lines as its input.
func (a *Account) run(ctx context.Context, script string, lines []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", "umask 077\n"+`cd "$HOME" || exit`+"\n"+script)
	cmd.Dir, cmd.Env = "/", []string{"HOME=" + a.Home, "PATH=/usr/bin:/bin", "LC_ALL=C"}
	cmd.WaitDelay = time.Second
	if a.UID != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(a.UID), Gid: uint32(a.GID)}}
	}
	if len(lines) > 0 {
		cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("--ssh-user %s: %s: %w: %s", a.Name, filepath.Join(a.Home, File), err, strings.ReplaceAll(strings.TrimSpace(said.String()), "\n", "; "))
	}
	return string(out), nil
}
