// Package ownership keeps root's commands from breaking a service that runs as a user
// of its own.
//
// The service cannot open a file that root makes in its data directory. Root also must not
// work by path in a directory that another user can change: a symbolic link there could
// lead it to any file of the machine. One means solves both: [Act] makes the process work
// as the owner of the directory, so that the kernel gives new files the right owner, and
// refuses what the owner may not do.
package ownership

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/karve-k8s/karve/internal/shell"
)

// ErrShared is for a user whose number is [Shared].
var ErrShared = errors.New("the server runs in a user namespace, where the kernel shows every user without a number there as 65534: run it as another user")

// Owner is the user and group that a directory belongs to.
type Owner struct {
	UID, GID int
}

// Of returns the owner of a file; ok is false where files have none of this kind.
func Of(info fs.FileInfo) (owner Owner, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return Owner{}, false
	}
	return Owner{int(st.Uid), int(st.Gid)}, true
}

// String returns the user's name, if the machine has one for it, and the number.
func (o Owner) String() string {
	id := strconv.Itoa(o.UID)
	if u, err := user.LookupId(id); err == nil {
		return fmt.Sprintf("%s (uid %s)", u.Username, id)
	}
	return "uid " + id
}

// Foreign returns the owner of dir, and whether that is another user than root while
// this process is root. It is false for a directory that does not exist.
func Foreign(dir string) (Owner, bool, error) {
	if os.Geteuid() != 0 {
		return Owner{}, false, nil
	}
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return Owner{}, false, nil
	} else if err != nil {
		return Owner{}, false, err
	}
	o, ok := Of(info)
	return o, ok && o.UID != 0, nil
}

// Act calls body. Meanwhile, this process acts as the owner of dir, if the process is
// root's and dir is another user's. Otherwise Act only calls body.
//
// The whole process has that identity: no other goroutine may depend on being root
// meanwhile. Errors about permissions name the user that the process was acting as.
func Act(dir string, body func() error) error {
	if _, foreign, err := Foreign(dir); err != nil {
		return err
	} else if !foreign {
		return body()
	}
	if err := RefuseFIFOs(dir); err != nil {
		return err
	}
	return Explain(ActOutside(dir, body), dir)
}

// ActOutside is Act for a directory that is no data directory: its files are none of Karve's.
func ActOutside(dir string, body func() error) (err error) {
	owner, foreign, err := Foreign(dir)
	if err != nil {
		return err
	}
	if !foreign {
		return body()
	}
	back, err := become(owner)
	if err != nil {
		return fmt.Errorf("act as %s, who owns %s: %w (run this command as that user)", owner, dir, err)
	}
	defer func() {
		if restoring := back(); restoring != nil {
			err = errors.Join(err, fmt.Errorf("become root again: %w", restoring))
		}
	}()
	return body()
}

// RefuseFIFOs returns an error that names a FIFO in dir or its certs, if this process is root's and dir is another
// user's: whoever opens one waits for another process, and that user could let root wait for ever.
func RefuseFIFOs(dir string) error {
	if _, foreign, err := Foreign(dir); err != nil || !foreign {
		return err
	}
	for _, in := range []string{dir, filepath.Join(dir, "certs")} {
		entries, _ := os.ReadDir(in) // what needs to read it reports the error
		for _, e := range entries {
			if e.Type()&fs.ModeNamedPipe != 0 {
				return fmt.Errorf("%s is a FIFO, for which this command of root's would wait: remove it", filepath.Join(in, e.Name()))
			}
		}
	}
	return nil
}

// Mine reports whether a file belongs to this process' user. It is true where files have no
// owners of this kind.
func Mine(info fs.FileInfo) bool {
	o, ok := Of(info)
	return !ok || o.UID == os.Geteuid()
}

// Same reports whether root would act as the owner of dir, and place is a directory of the
// same owner. What is made in place is then made as that owner. In any other directory, a
// file that root asked for is root's.
func Same(dir, place string) bool {
	owner, foreign, err := Foreign(dir)
	if err != nil || !foreign {
		return false
	}
	other, foreign, err := Foreign(place)
	return err == nil && foreign && other.UID == owner.UID
}

// Lend gives f to o. This process has made f in a directory that only root can change.
func Lend(f *os.File, o Owner) error { return f.Chown(o.UID, o.GID) }

// Give makes the owner of dir the owner of a file of root's, if this process is root's and dir is another user's.
// It leaves a file alone that is already somebody else's, or is in a directory that another user can change.
func Give(file, dir string) error {
	owner, foreign, err := Foreign(dir)
	if err != nil || !foreign {
		return err
	}
	if _, others, err := Foreign(filepath.Dir(file)); err != nil || others {
		return err
	}
	if _, others, err := Foreign(file); err != nil || others {
		return err
	}
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return err
	}
	return Lend(f, owner)
}

// ExplainTemp says in an error of making a file or directory in [os.TempDir] what decides where that is.
func ExplainTemp(err error) error {
	return fmt.Errorf("%w: temporary files need a directory that exists and can be written: TMPDIR names it", err)
}

// Explain adds to an error about permissions which files of dir belong to another user than
// dir itself, and the remedy. It returns other errors unchanged.
func Explain(err error, dir string) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	info, statErr := os.Stat(dir)
	if statErr != nil {
		return err
	}
	owner, ok := Of(info)
	if !ok {
		return err
	}
	stranger := ""
	// What cannot be read here is not what could be named.
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, walkErr error) error {
		if walkErr != nil {
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return nil
		}
		if o, ok := Of(info); ok && o.UID != owner.UID {
			stranger = fmt.Sprintf("%s belongs to %s", path, o)
			return filepath.SkipAll
		}
		return nil
	})
	if stranger == "" {
		return err
	}
	return fmt.Errorf("%w (%s, but the directory to %s; as root: chown -hR %d:%d %s)", err, stranger, owner, owner.UID, owner.GID, shell.Quoted(dir))
}

// ErrForeign means that root would leave files in another user's data directory.
var ErrForeign = errors.New("the directory belongs to another user")

// Check returns [ErrForeign] if the files that this process, as root, makes in dir belong
// to another user than dir does. It makes one, because a file system may have no owners of
// its own (vfat, a shared directory of a virtual machine, NFS with root_squash): there,
// everything belongs to one user.
func Check(dir string) error {
	owner, foreign, err := Foreign(dir)
	if err != nil || !foreign {
		return err
	}
	probe, err := os.CreateTemp(dir, ".owner-")
	if err != nil {
		return err
	}
	defer os.Remove(probe.Name())
	defer probe.Close()
	info, err := probe.Stat()
	if err != nil {
		return err
	}
	if made, ok := Of(info); !ok || made.UID == owner.UID {
		return nil
	}
	return fmt.Errorf("%w: %s to %s, and this is root, whose files its service could not open: run this as that user (setpriv --reuid %d --regid %d --clear-groups karve …; or start the service), or make the directory root's for good (chown -hR 0:0 %s)",
		ErrForeign, dir, owner, owner.UID, owner.GID, shell.Quoted(dir))
}
