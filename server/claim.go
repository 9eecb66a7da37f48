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
	"syscall"

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

	made   []string // the directories that it created, the deepest first
	served bool     // the API server has the listeners and closes them
}

// claim takes all of them, or none. It comes before any slow work, so that the user sees a mistake
// immediately. It binds the ports first, so that a refused start leaves no directory behind.
func (p *plan) claim(log *logrus.Logger) (_ *claim, err error) {
	c := &claim{}
	defer func() {
		if err != nil {
			c.release()
			// One may be inside another.
			slices.SortFunc(c.made, func(a, b string) int { return len(b) - len(a) })
			for _, dir := range c.made {
				os.Remove(dir) // fails unless it is empty
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

// lockDirs creates, locks and marks the directories. It locks the existing ones first, because
// only they can be in use. If one is, the directories that it created are still empty. It never
// removes a lock file, because another process may be about to lock it.
func (c *claim) lockDirs(p *plan, log *logrus.Logger) error {
	var errs problems
	dirs := p.directories()
	for _, dir := range dirs {
		c.made = append(c.made, missing(dir.path)...)
		err := makeWritable(dir.path)
		if err == nil {
			// Files of root would make a service's own directory unusable for it. `karve check`
			// does not check this, because karve install runs it as root for the service's directory.
			err = ownership.Check(dir.path)
		}
		if err == nil {
			err = closeToOthers(dir.path, log)
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
			continue // it stays empty
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
		marker.RemoveLeft(dir.path)
		if err := marker.Mark(dir.path); marker.MayStayUnmarked(err) {
			log.Warnf("cannot write %s, by which karve install recognises Karve's directories; the next start tries again: %v", filepath.Join(dir.path, marker.File), err)
		} else if err != nil {
			errs.addf("--%s: %w", dir.option, err)
		}
	}
	return errors.Join(errs...)
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

// taken reports which ports and directories a refused configuration could not use, so that one
// start reports every mistake. It claims nothing, and removes the directories that it creates.
func (d *draft) taken() error {
	var errs problems
	for _, port := range d.ports {
		errs.add(port.Try())
	}
	for _, dir := range d.directories() {
		if dir.option == "data-dir" && checkDataDir(dir.path) != nil {
			continue // parse has reported this
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

// checkDataDir reports why a directory cannot be created or written. It changes nothing, so it
// cannot see limits such as a quota; makeWritable finds those.
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
		return fmt.Errorf("--data-dir %s: %w: name another directory", dir, &fs.PathError{Op: "write to", Path: at, Err: err})
	}
	return nil
}

// missing returns the directories that creating dir would create, the deepest first.
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
	} else if err != nil {
		return err
	}
	f.Close()
	return os.Remove(f.Name())
}
