package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	datadir "github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/internal/shell"
	"github.com/karve-k8s/karve/server/marker"
	"github.com/karve-k8s/karve/server/ports"
)

// claim holds what only one process can have: the locks of the directories, and the ports.
type claim struct {
	lock      *datadir.Lock
	storeLock *datadir.Lock // of the datastore's directory; nil if that is the data directory
	secure    net.Listener
	insecure  net.Listener // nil if it is disabled
	etcd      net.Listener // nil if the etcd API has only its socket
	served    bool         // the API server has the listeners and closes them
}

// claim takes all of them, or none. It comes before any slow work, so that the user sees a mistake
// immediately. It binds the ports first, so that one in use leaves no new directory behind.
func (p *plan) claim(log *logrus.Logger) (_ *claim, err error) {
	c := &claim{}
	defer func() {
		if err != nil {
			c.release()
		}
	}()
	var errs problems
	for _, port := range p.ports {
		l, err := port.Listen()
		if err != nil {
			errs.add(err)
			continue
		}
		switch port.Option {
		case securePort:
			c.secure = l
		case insecurePort:
			c.insecure = l
		case etcdPort:
			c.etcd = l
		}
	}
	if len(errs) > 0 {
		errs.add(p.directoriesInUse()) // by the server that has the port
		return nil, errors.Join(errs...)
	}
	for _, dir := range p.directories() {
		if err := c.lockDir(dir.path, p.DataDir, log); err != nil {
			return nil, fmt.Errorf("--%s: %w", dir.option, err)
		}
	}
	return c, nil
}

// lockDir creates, checks, locks and marks a directory. A failed claim does not remove the lock file, because
// another process may be about to lock it.
func (c *claim) lockDir(dir, dataDir string, log *logrus.Logger) error {
	if err := makeWritable(dir); err != nil {
		return err
	}
	// Files of root would make a service's own directory unusable for it. `karve check`
	// does not check this, because karve install runs it as root for the service's directory.
	if err := ownership.Check(dir); err != nil {
		return err
	}
	if err := closeToOthers(dir, log); err != nil {
		return err
	}
	lock, err := datadir.Acquire(dir)
	if err != nil {
		return err
	}
	if dir == dataDir {
		c.lock = lock
	} else {
		c.storeLock = lock
	}
	marker.RemoveLeft(dir)
	err = marker.Mark(dir)
	if marker.MayStayUnmarked(err) {
		log.Warnf("cannot write %s, by which karve install recognises Karve's directories; the next start tries again: %v", filepath.Join(dir, marker.File), err)
		return nil
	}
	return err
}

// closeToOthers takes from every other user the right to place files in a directory of this user's: a database, or keys. It
// changes no directory that has other files than Karve's. A file system without modes keeps what it has.
func closeToOthers(dir string, log *logrus.Logger) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if _, known := ownership.Of(info); !known || !ownership.Mine(info) || info.Mode().Perm()&0o002 == 0 {
		return nil
	}
	if !marker.Ours(dir) && !marker.Vacant(dir) {
		return fmt.Errorf("every user of this machine may place files in %s (mode %04o): chmod o-w %s, or name another directory", dir, info.Mode().Perm(), shell.Quoted(dir))
	}
	if os.Chmod(dir, info.Mode()&^0o002) == nil {
		log.Warnf("every user of this machine could place files in %s (mode %04o): now they cannot", dir, info.Mode().Perm())
	}
	return nil
}

// directory is a directory that the server locks, and the option that names it.
type directory struct{ option, path string }

// directories returns the data directory and, if it is a different one, the datastore's.
func (p *plan) directories() []directory {
	var all []directory
	if p.DataDir != "" {
		all = append(all, directory{"data-dir", p.DataDir})
	}
	if dir := p.location.Dir; dir != "" && filepath.Clean(dir) != filepath.Clean(p.DataDir) {
		all = append(all, directory{"datastore-endpoint", dir})
	}
	return all
}

// directoriesInUse reports which directories another process has locked. It creates nothing.
func (p *plan) directoriesInUse() error {
	var errs problems
	for _, dir := range p.directories() {
		if pid, held, err := datadir.Holder(dir.path); err == nil && held {
			errs.addf("--%s: %w: %s is held by process %d", dir.option, datadir.ErrLocked, dir.path, pid)
		}
	}
	return errors.Join(errs...)
}

// held returns an error unless the directories are still those that were claimed.
func (c *claim) held() error {
	var errs problems
	for _, lock := range []*datadir.Lock{c.lock, c.storeLock} {
		if lock != nil {
			errs.add(lock.Check())
		}
	}
	return errors.Join(errs...)
}

// keepDirectories ends the server when another directory has taken the place of one of its own: upstream reads certificates and
// encryption keys again by name, and would take another cluster's. Nothing is lost, because open files follow their directory. If that
// has only gone away, there is nothing to take, and the server goes on: a start in its place would make a new cluster.
func (s *controlPlane) keepDirectories(ctx context.Context, ready func()) error {
	ready()
	told := false
	for ctx.Err() == nil {
		err := s.claim.held()
		if errors.Is(err, datadir.ErrReplaced) {
			return err
		}
		if err != nil && !told {
			s.Log.Errorf("%v. Until then it makes no backup and answers no command", err)
		}
		told = err != nil
		select {
		case <-time.After(keepInterval):
		case <-ctx.Done():
		}
	}
	return nil
}

// keepInterval is shorter than that at which encryption keys are read again.
const keepInterval = time.Second

// storage returns the lock of the datastore's directory.
func (c *claim) storage() *datadir.Lock {
	if c.storeLock != nil {
		return c.storeLock
	}
	return c.lock
}

// release gives back what was claimed. It leaves the listeners that the API server has to the API
// server: upstream panics when another goroutine closes its listener, which would happen after a
// termination that ran into its time limit.
func (c *claim) release() {
	for _, l := range []net.Listener{c.secure, c.insecure} {
		if l != nil && !c.served {
			l.Close()
		}
	}
	if c.etcd != nil {
		c.etcd.Close() // a second close, if the shim had it, is harmless
	}
	for _, lock := range []*datadir.Lock{c.storeLock, c.lock} {
		if lock != nil {
			lock.Close()
		}
	}
}

// url returns the URL of the secure listener at an address of this machine.
func (c *claim) url() string { return "https://" + ports.Local(c.secure) }

// makeWritable creates a directory, and briefly a file in it. Quotas and some network file systems
// refuse a write that the permissions allow.
func makeWritable(dir string) error {
	if err := atomicfile.MakeDir(dir); errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: if it is on a disk of its own, mount that; otherwise, as root: install -d -m 0700 -o %d -g %d %s", err, os.Geteuid(), os.Getegid(), shell.Quoted(dir))
	} else if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".writable-")
	if datadir.IsFull(err) {
		return nil // the datastore keeps space in reserve for this, and frees it
	} else if errors.Is(err, syscall.EROFS) {
		return datadir.ReadOnly(dir)
	} else if err != nil {
		return fmt.Errorf("cannot write to %s (%w): make it writable for this user, or, for a new cluster, name another directory", dir, errors.Unwrap(err))
	}
	f.Close()
	return os.Remove(f.Name())
}
