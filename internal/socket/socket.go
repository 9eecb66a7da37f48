// Package socket listens on unix sockets in a data directory, for this machine's
// administrator and the server's own user.
package socket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/karve-k8s/karve/control"
)

// Listener is a unix socket with mode 0600. Its Close removes that socket, and no other of its name.
type Listener struct {
	net.Listener
	path    string
	own     os.FileInfo // of the socket
	release func()      // of a short path
	tempDir string
	link    string // in the data directory, to the socket in tempDir
	once    sync.Once
	err     error
}

// tempPrefix begins the name of a temporary directory with a socket.
const tempPrefix = "karve-"

// Listen listens on dir/name, however long that path is ([control.SocketPath]). On systems other than
// Linux, a socket whose path is too long is in a private temporary directory, and dir/name is a
// link to it. The caller holds the lock of dir, so an existing socket was left by a crash.
func Listen(dir, name string) (*Listener, error) {
	path, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		return nil, fmt.Errorf("find socket path: %w", err)
	}
	if err := removeOld(path); err != nil {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	l := &Listener{path: path, release: func() {}}
	// An abstract socket has no mode, and a client of the socket is an administrator.
	switch {
	case runtime.GOOS == "linux":
		if l.path, l.release, err = control.SocketPath(path); err != nil {
			return nil, fmt.Errorf("listen on %s: %w", path, err)
		}
	case len(path) > control.LongestSocketPath:
		if l.tempDir, err = os.MkdirTemp("", tempPrefix); err != nil {
			return nil, fmt.Errorf("make socket directory: %w", err)
		}
		l.link, l.path = path, filepath.Join(l.tempDir, name)
		if err := os.Symlink(l.path, l.link); err != nil {
			l.remove()
			return nil, fmt.Errorf("link to socket: %w", err)
		}
	}
	if l.Listener, err = (&net.ListenConfig{Control: private}).Listen(context.Background(), "unix", l.path); err != nil {
		l.remove()
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if u, ok := l.Listener.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // by its name, whose socket it may be then
	}
	if l.own, err = os.Lstat(l.path); err == nil {
		err = os.Chmod(l.path, 0o600)
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("protect %s: %w", path, err)
	}
	return l, nil
}

// Path returns a path by which this process can connect to the socket while it listens.
func (l *Listener) Path() string { return l.path }

// URL is the address of a socket for an etcd client, which takes it for a URL: a path may have a % or a ? in it.
func URL(path string) string { return (&url.URL{Scheme: "unix", Path: path}).String() }

// Close closes the listener and removes the socket. Further calls return the same result.
func (l *Listener) Close() error {
	l.once.Do(func() {
		l.err = l.Listener.Close()
		l.remove()
	})
	return l.err
}

// removeOld removes the socket of a server that has crashed, which would refuse the bind, also behind a link of Listen's.
func removeOld(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() == os.ModeSymlink:
		linked, err := os.Readlink(path)
		if dir := filepath.Dir(linked); err == nil && filepath.Base(linked) == filepath.Base(path) && strings.HasPrefix(filepath.Base(dir), tempPrefix) {
			os.Remove(linked)
			os.Remove(dir) // if it is empty
		}
	case info.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("%s is no socket: move it away", path)
	}
	return os.Remove(path)
}

// remove removes the socket, unless another server's has its name: its directory may have taken the place of this one.
func (l *Listener) remove() {
	if its, err := os.Lstat(l.path); err == nil && os.SameFile(its, l.own) {
		os.Remove(l.path)
	}
	l.release()
	if l.tempDir != "" {
		os.RemoveAll(l.tempDir)
	}
	if to, err := os.Readlink(l.link); err == nil && to == l.path {
		os.Remove(l.link)
	}
}
