package server

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/sirupsen/logrus"

	datadir "github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/server/ports"
)

// claim is what only one process can have: the directories and the ports.
type claim struct {
	lock      *datadir.Lock
	storeLock *datadir.Lock // of the datastore's directory; nil: it is the same
	secure    net.Listener
	insecure  net.Listener // nil: switched off
	etcd      net.Listener // nil: on its socket only

	made   []string // directories, the lowest first
	served bool     // the API server has the listeners, and closes them
}

// claim takes them, or nothing. Slow work comes later, so a mistake shows immediately. The
// ports come first: a start that is refused leaves no directory behind.
func (p *plan) claim(log *logrus.Logger) (_ *claim, err error) {
	c := &claim{}
	defer func() {
		if err != nil {
			c.release()
			for _, dir := range c.made {
				os.Remove(dir) // if it is empty
			}
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
		errs.add(p.directoriesInUse())
		return nil, errors.Join(errs...)
	}
	return c, c.lockDirs(p, log)
}

// lockDirs creates, locks and marks the directories. It locks those that exist first: they
// alone can be in use, and a directory that was created for nothing is then empty still. A
// lock is never removed, since another process may be about to take it.
func (c *claim) lockDirs(p *plan, log *logrus.Logger) error {
	var errs problems
	dirs := p.directories()
	for _, dir := range dirs {
		c.made = append(c.made, missing(dir.path)...)
		err := makeWritable(dir.path)
		if err == nil {
			// Root's files would keep a service out of its own directory. `karve check` does
			// not mind, since install.sh runs it as root about the service's directory.
			err = ownership.Check(dir.path)
		}
		if err != nil {
			errs.addf("--%s: %w", dir.option, err)
		}
	}
	if len(errs) > 0 {
		errs.add(p.directoriesInUse())
		return errors.Join(errs...)
	}
	slices.SortStableFunc(dirs, func(a, b directory) int {
		return cmp.Compare(slices.Index(c.made, a.path), slices.Index(c.made, b.path))
	})
	for _, dir := range dirs {
		if len(errs) > 0 && slices.Contains(c.made, dir.path) {
			continue // it is empty still
		}
		lock, err := datadir.Acquire(dir.path)
		if err != nil {
			errs.addf("--%s: %w", dir.option, err)
			continue
		}
		if dir.path == p.DataDir {
			c.lock = lock
		} else {
			c.storeLock = lock
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for _, dir := range dirs {
		if err := mark(dir.path); mayStayUnmarked(err) {
			log.Warnf("%s has no mark that it is Karve's, by which install.sh knows it; the next start tries again: %v", dir.path, err)
		} else if err != nil {
			errs.addf("--%s: %w", dir.option, err)
		}
	}
	return errors.Join(errs...)
}

// taken reports which ports and directories a refused configuration could not have, and
// takes none: one start shows every mistake. It removes the directories that it creates.
func (d *draft) taken() error {
	var errs problems
	for _, port := range d.ports {
		errs.add(port.Try())
	}
	for _, dir := range d.directories() {
		if checkDataDir(dir.path) != nil {
			continue // the draft has this problem
		}
		created := missing(dir.path)
		if err := makeWritable(dir.path); err != nil {
			errs.addf("--%s: %w", dir.option, err)
		}
		for _, dir := range created {
			os.Remove(dir)
		}
	}
	errs.add(d.directoriesInUse())
	return errors.Join(errs...)
}

// directory is one that the server locks.
type directory struct{ option, path string }

// directories are the data directory and, if it is another, the datastore's.
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

// directoriesInUse reports which directories another process has locked. It creates none.
func (p *plan) directoriesInUse() error {
	var errs problems
	for _, dir := range p.directories() {
		if pid, held, err := datadir.Holder(dir.path); err == nil && held {
			errs.addf("--%s: %w: %s is held by process %d", dir.option, datadir.ErrLocked, dir.path, pid)
		}
	}
	return errors.Join(errs...)
}

// storage is the lock of the datastore's directory.
func (c *claim) storage() *datadir.Lock {
	if c.storeLock != nil {
		return c.storeLock
	}
	return c.lock
}

// release gives back what was claimed. Upstream panics when a listener is closed under it,
// which would happen where its termination was given up: the API server closes its own.
func (c *claim) release() {
	for _, l := range []net.Listener{c.secure, c.insecure} {
		if l != nil && !c.served {
			l.Close()
		}
	}
	if c.etcd != nil {
		c.etcd.Close() // the shim has closed it, if it had it
	}
	for _, lock := range []*datadir.Lock{c.storeLock, c.lock} {
		if lock != nil {
			lock.Close()
		}
	}
}

// url is the secure listener at an address of this machine.
func (c *claim) url() string { return "https://" + ports.Local(c.secure) }

// checkDataDir reports why a directory could not be created and written, as far as that shows
// without doing it. What permissions do not show, such as a quota, the claim finds.
func checkDataDir(dir string) error {
	if dir == "" {
		return errors.New("--data-dir: needs a directory")
	}
	at := dir
	for {
		info, err := os.Stat(at)
		if errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
			at = filepath.Dir(at)
			continue
		}
		switch {
		case err != nil:
			return fmt.Errorf("--data-dir: %w", err)
		case !info.IsDir():
			return fmt.Errorf("--data-dir: %s: not a directory", at)
		}
		break
	}
	if err := writable(at); err != nil {
		return fmt.Errorf("--data-dir: %w", &fs.PathError{Op: "write to", Path: at, Err: err})
	}
	return nil
}

// missing are the directories that creating dir would create, the lowest first.
func missing(dir string) []string {
	var all []string
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		all = append(all, dir)
	}
	return all
}

// makeWritable creates a directory, and a file in it for a moment: quotas and some network
// file systems show only when they are used.
func makeWritable(dir string) error {
	if err := atomicfile.MakeDir(dir); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".writable-")
	if datadir.IsFull(err) {
		return nil // the datastore keeps room for this, and gives it up
	} else if err != nil {
		return err
	}
	f.Close()
	return os.Remove(f.Name())
}
