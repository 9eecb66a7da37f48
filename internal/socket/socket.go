// Package socket listens on unix sockets in a data directory, for this machine's
// administrator and the server's own user.
package socket

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
)

// ErrMissing: this system has no unix sockets (a Windows before 10 1803).
var ErrMissing = errors.New("this system has no unix sockets")

// longest is what sockaddr_un holds on Linux, less its final zero.
const longest = 107

// Listener is a unix socket with mode 0600. Its Close removes it.
type Listener struct {
	net.Listener
	path    string
	tempDir string
	link    string // in the data directory, to the socket in tempDir
	once    sync.Once
	err     error
}

// Listen listens on dir/name, or in a private temporary directory where that path is
// longer than the kernel allows; dir/name then is a link to it. The caller has the
// lock of dir: what is there was left by a crash.
func Listen(dir, name string) (*Listener, error) {
	path, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		return nil, fmt.Errorf("find socket path: %w", err)
	}
	// A socket left by a crash would refuse the bind. If it is a link, only what is
	// empty goes with it.
	if linked, err := os.Readlink(path); err == nil && filepath.Base(linked) == filepath.Base(path) {
		os.Remove(linked)
		os.Remove(filepath.Dir(linked))
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	l := &Listener{path: path}
	if len(path) > longest {
		// Not an abstract socket: those have no mode, and whoever reaches the
		// socket is an administrator.
		if l.tempDir, err = os.MkdirTemp("", "karve-"); err != nil {
			return nil, fmt.Errorf("make socket directory: %w", err)
		}
		l.link, l.path = path, filepath.Join(l.tempDir, name)
		if err := os.Symlink(l.path, l.link); err != nil {
			l.remove()
			return nil, fmt.Errorf("link to socket: %w", err)
		}
	}
	if l.Listener, err = net.Listen("unix", l.path); err != nil {
		l.remove()
		if missing(err) {
			return nil, fmt.Errorf("%w: %w", ErrMissing, err)
		}
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := os.Chmod(l.path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("protect %s: %w", path, err)
	}
	return l, nil
}

// Path is that of the socket itself, which is not in the data directory where that
// path would be too long.
func (l *Listener) Path() string { return l.path }

// Close ends the listener and removes the socket. Calling it again answers the same.
func (l *Listener) Close() error {
	l.once.Do(func() {
		l.err = l.Listener.Close()
		l.remove()
	})
	return l.err
}

// remove removes what Go's listener does not.
func (l *Listener) remove() {
	if l.tempDir != "" {
		os.RemoveAll(l.tempDir)
	}
	if l.link != "" {
		os.Remove(l.link)
	}
}
