package join

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/internal/setup"
	"github.com/karve-k8s/karve/nodes/tunnels"
)

// Where sshd looks for a user's keys, in the user's home directory.
const (
	sshDir         = ".ssh"
	authorizedKeys = sshDir + "/authorized_keys"
)

// login is the account as which the server logs in through SSH.
type login struct {
	user     string
	home     string
	uid, gid int
}

// access is what a join has changed to let the server log in.
type access struct {
	User  string   `json:"user"`
	Home  string   `json:"home"`
	Lines []string `json:"lines"` // that were added
	// MadeDirectory and MadeFile say what was not there before.
	MadeDirectory bool `json:"madeDirectory,omitempty"`
	MadeFile      bool `json:"madeFile,omitempty"`
	// Unterminated says that the last line before them had no newline.
	Unterminated bool `json:"unterminated,omitempty"`
}

// offeredKeys are the lines that the servers offer for authorized_keys, in a ConfigMap that exists
// soon after the start of a server with --ssh-user.
func (c *cluster) offeredKeys(ctx context.Context, o Options) ([]string, error) {
	const where = "the ConfigMap " + tunnels.OfferName + " in kube-public"
	var offer *corev1.ConfigMap
	for deadline := time.Now().Add(o.Patience); ; {
		var err error
		offer, err = c.client.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, tunnels.OfferName, metav1.GetOptions{})
		if err == nil {
			break
		}
		// The server also makes the Role that lets a token read it.
		if !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
			return nil, fmt.Errorf("--ssh-user: %s cannot be read from %s: %w", where, c.server, err)
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("--ssh-user %s: %s offers no SSH key to nodes (%[3]w): start the server with --ssh-user %[1]s, or leave the option out here", o.SSHUser, c.server, err)
		}
		if err := pause(ctx, time.Second); err != nil {
			return nil, err
		}
	}
	if user := offer.Data[tunnels.OfferUser]; user != o.SSHUser {
		return nil, fmt.Errorf("--ssh-user %s: the server logs in as %q, says %s: give that user, or start the server with --ssh-user %[1]s", o.SSHUser, user, where)
	}
	lines, err := tunnels.Offered(offer.Data[tunnels.OfferLines])
	if err == nil && len(lines) == 0 {
		err = errors.New("it has no key")
	}
	if err != nil {
		return nil, fmt.Errorf("--ssh-user: %s, %s: %w: delete it with `karve kubectl -n kube-public delete configmap %s`, and restart the server, which makes it anew", where, tunnels.OfferLines, err, tunnels.OfferName)
	}
	return lines, nil
}

var errNoUser = errors.New("this machine has no such user")

// account asks the system, which knows users that are not in /etc/passwd.
func (m *Machine) account(ctx context.Context, user string) (*login, error) {
	text, err := m.run(ctx, "getent", "passwd", user)
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("--ssh-user: %w: install it (Debian: libc-bin)", err)
	}
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 2) { // 2: no such user
		return nil, fmt.Errorf("--ssh-user %s: %w", user, err)
	}
	fields := strings.Split(strings.TrimSpace(text), ":")
	if err != nil || len(fields) != 7 || fields[0] != user {
		return nil, fmt.Errorf("--ssh-user %s: %w: make it with `useradd --create-home --shell /usr/sbin/nologin %[1]s`, or correct the name", user, errNoUser)
	}
	l := &login{user: user, home: fields[5]}
	var wrong [2]error
	l.uid, wrong[0] = strconv.Atoi(fields[2])
	l.gid, wrong[1] = strconv.Atoi(fields[3])
	if err := errors.Join(wrong[:]...); err != nil {
		return nil, fmt.Errorf("--ssh-user %s: getent passwd: %w", user, err)
	}
	return l, nil
}

// login finds the account, and what would keep sshd from accepting a key for it.
func (m *Machine) login(ctx context.Context, user string) (*login, error) {
	l, err := m.account(ctx, user)
	if err != nil {
		return nil, err
	}
	home, err := os.OpenRoot(m.path(l.home))
	if err != nil || !filepath.IsAbs(l.home) {
		return nil, fmt.Errorf("--ssh-user %s: the home directory %q of that user cannot be used (%v): sshd looks for its keys there: make it, or choose another user", user, l.home, err)
	}
	defer home.Close()
	return l, l.check(home)
}

// check refuses the server's own account, files that sshd would ignore because others may write to them,
// and links.
func (l *login) check(home *os.Root) error {
	if _, err := home.Lstat(setup.ServerMarker); err == nil { // its sockets make this user an administrator
		return fmt.Errorf("--ssh-user %s: this is the account of the Karve server (it has %s): make another user for SSH with `useradd --create-home --shell /usr/sbin/nologin karve-ssh`", l.user, filepath.Join(l.home, setup.ServerMarker))
	}
	for _, name := range []string{".", sshDir, authorizedKeys} {
		path := filepath.Join(l.home, name)
		info, err := home.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return fmt.Errorf("--ssh-user %s: %w", l.user, err)
		}
		want, is := "a directory", info.IsDir()
		if name == authorizedKeys {
			want, is = "a file", info.Mode().IsRegular()
		}
		uid, _ := ownerOf(info)
		switch mode := info.Mode().Perm(); {
		case !is: // a link may lead to another user's files, and this is root
			return fmt.Errorf("--ssh-user %s: %s is not %s: leave the option out, and put the line of `karve ssh public-key` there by hand", l.user, path, want)
		case uid > 0 && uid != l.uid:
			return fmt.Errorf("--ssh-user %s: %s belongs to user %d, so sshd ignores the keys: run chown %[1]s %s", l.user, path, uid, path)
		case mode&0o022 != 0:
			return fmt.Errorf("--ssh-user %s: other users may write to %s (mode %04o), so sshd ignores the keys: run chmod go-w %[2]s", l.user, path, mode)
		case name == authorizedKeys && info.Size() > maxKeys:
			return fmt.Errorf("--ssh-user %s: %s: %w: remove what is no key from it, or leave the option out, and put the line of `karve ssh public-key` there by hand", l.user, path, errTooLarge)
		}
	}
	return nil
}

// authorize adds the lines whose keys are not there yet to the user's authorized_keys. What is added is
// in the record before. Everything in a home directory is under the user's control, and this is root:
// nothing here follows a link out of it.
func (m *Machine) authorize(r *record, l *login, lines []string) error {
	home, err := os.OpenRoot(m.path(l.home))
	if err != nil {
		return fmt.Errorf("--ssh-user: %w", err)
	}
	defer home.Close()
	if err := l.check(home); err != nil { // again: the packages took minutes
		return err
	}
	a := &access{User: l.user, Home: l.home}
	if _, err := home.Lstat(sshDir); errors.Is(err, fs.ErrNotExist) {
		a.MadeDirectory = true
	}
	f := keyFile{mode: 0o600, uid: l.uid, gid: l.gid}
	if err := f.read(home); errors.Is(err, fs.ErrNotExist) {
		a.MadeFile = true
	} else if err != nil {
		return fmt.Errorf("--ssh-user: %s: %w", filepath.Join(l.home, authorizedKeys), err)
	}
	if len(f.text) > 0 && !bytes.HasSuffix(f.text, []byte("\n")) {
		a.Unterminated = true
		f.text = append(f.text, '\n')
	}
	for _, line := range lines {
		if there, _ := tunnels.Authorizes(string(f.text), line); !there {
			a.Lines = append(a.Lines, line)
			f.text = append(f.text, line+"\n"...)
		}
	}
	r.SSH = a // also without lines, so that the same join again knows of the user
	if err := m.writeRecord(r); err != nil || len(a.Lines) == 0 {
		return err
	}
	if a.MadeDirectory {
		if err := makeSSHDir(home, l); err != nil {
			return fmt.Errorf("--ssh-user: %s: %w", filepath.Join(l.home, sshDir), err)
		}
	}
	if err := f.write(home); err != nil {
		return fmt.Errorf("--ssh-user: %s: %w", filepath.Join(l.home, authorizedKeys), err)
	}
	return nil
}

func makeSSHDir(home *os.Root, l *login) error {
	if err := home.Mkdir(sshDir, 0o700); err != nil {
		return err
	}
	return l.takeOver(home)
}

// takeOver gives the user the directory that makeSSHDir made. The user may have put something else there
// meanwhile, which has to stay as it is.
func (l *login) takeOver(home *os.Root) error {
	dir, err := home.OpenFile(sshDir, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	info, err := dir.Stat()
	if err != nil {
		return err
	}
	uid, _ := ownerOf(info)
	ours := info.IsDir() && uid == os.Geteuid()
	if ours {
		entries, err := dir.ReadDir(1)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		ours = len(entries) == 0
	}
	if !ours {
		return errors.New("somebody replaced the directory while it was made: join again")
	}
	return errors.Join(dir.Chmod(0o700), dir.Chown(l.uid, l.gid))
}

// withdraw takes the lines away again, and nothing else. Something that is no file does not stop a removal:
// its owner put it there, and what to do about it is not for root to decide.
func (m *Machine) withdraw(ctx context.Context, a *access, say func(string, ...any)) error {
	if a == nil || len(a.Lines) == 0 {
		return nil
	}
	dir := a.Home
	home, err := os.OpenRoot(m.path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		l, e := m.account(ctx, a.User)
		if errors.Is(e, errNoUser) {
			return nil // the directory went with the user
		} else if e != nil {
			return e
		}
		dir = l.home
		home, err = os.OpenRoot(m.path(dir))
	}
	path := filepath.Join(dir, authorizedKeys)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: the home directory of %s is not there, and may have the server's key in it: mount it, and try again", path, a.User)
	} else if err != nil {
		return fmt.Errorf("%s: take the server's key away: %w", path, err)
	}
	defer home.Close()
	if err := a.takeFrom(home); errors.Is(err, errNoFile) || errors.Is(err, errTooLarge) {
		say("warning: %s: %v. Nothing was taken out of it. If it has these lines, remove them by hand:\n%s", path, err, strings.Join(a.Lines, "\n"))
	} else if err != nil {
		return fmt.Errorf("%s: take the server's key away: %w", path, err)
	}
	return nil
}

func (a *access) takeFrom(home *os.Root) error {
	var f keyFile
	if err := f.read(home); errors.Is(err, fs.ErrNotExist) {
		return a.removeDirectory(home)
	} else if err != nil {
		return err
	}
	var kept []byte
	last := false // whether the line is one that was added
	for line := range bytes.Lines(f.text) {
		if last = slices.Contains(a.Lines, strings.TrimRight(string(line), "\r\n")); !last {
			kept = append(kept, line...)
		}
	}
	switch {
	case len(kept) == len(f.text): // they are gone already, or never came
		return a.removeDirectory(home)
	case len(kept) == 0 && a.MadeFile:
		return errors.Join(home.Remove(authorizedKeys), a.removeDirectory(home))
	case a.Unterminated && last:
		kept = bytes.TrimSuffix(kept, []byte("\n"))
	}
	f.text = kept
	return f.write(home)
}

// removeDirectory removes the directory that the join made, unless something is in it.
func (a *access) removeDirectory(home *os.Root) error {
	if !a.MadeDirectory {
		return nil
	}
	err := home.Remove(sshDir)
	if entries, e := fs.ReadDir(home.FS(), sshDir); e == nil && len(entries) > 0 || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// maxKeys is how large authorized_keys may be. It is read whole.
const maxKeys = 1 << 20

var (
	errNoFile   = errors.New("it is not a file in a directory " + sshDir)
	errTooLarge = fmt.Errorf("it is larger than %d bytes", maxKeys)
)

// keyFile is authorized_keys.
type keyFile struct {
	text     []byte
	mode     fs.FileMode
	uid, gid int
}

// read takes everything from one open file, because the user may replace it at any time. It leaves mode and
// owner if there is no such file.
func (f *keyFile) read(home *os.Root) error {
	for _, name := range []string{sshDir, authorizedKeys} {
		info, err := home.Lstat(name)
		if err != nil {
			return err
		}
		if name == sshDir && !info.IsDir() || name == authorizedKeys && !info.Mode().IsRegular() {
			return errNoFile
		}
	}
	file, err := home.OpenFile(authorizedKeys, os.O_RDONLY|nonblock, 0) // a FIFO would keep root waiting
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errNoFile
	}
	text, err := io.ReadAll(io.LimitReader(file, maxKeys+1))
	if err != nil {
		return err
	}
	if len(text) > maxKeys {
		return errTooLarge
	}
	f.text, f.mode = text, info.Mode().Perm()
	f.uid, f.gid = ownerOf(info)
	return nil
}

// write replaces the file whole: sshd may read it at any time. internal/atomicfile works with paths, which
// the user could turn into links meanwhile.
func (f *keyFile) write(home *os.Root) (err error) {
	const temporary = sshDir + "/.karve-authorized_keys.tmp"
	if err := home.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := home.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(f.text)
	// The owner comes last: until then nobody else can write to it.
	if err = errors.Join(err, file.Chmod(f.mode), file.Chown(f.uid, f.gid), file.Sync(), file.Close()); err == nil {
		err = home.Rename(temporary, authorizedKeys)
	}
	if err != nil {
		_ = home.Remove(temporary)
		return err
	}
	dir, err := home.Open(sshDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
