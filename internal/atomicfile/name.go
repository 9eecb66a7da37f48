package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Same reports whether two paths name the same file, which exists.
func Same(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// Rename gives a finished, synced file its name, replaces a file of that name, and makes the
// name durable. Both names must be in the same file system.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// RenameNew is [Rename] for a name that must be free: a file that has it stays, and the error
// is [fs.ErrExist]. Where the file system has hard links, two processes cannot both succeed.
func RenameNew(from, to string) error {
	err := os.Link(from, to) // unlike rename(2), link(2) never replaces
	switch {
	case err == nil:
		err = os.Remove(from)
	case errors.Is(err, fs.ErrExist):
		return err
	default:
		if _, taken := os.Lstat(to); taken == nil {
			return &fs.PathError{Op: "rename", Path: to, Err: fs.ErrExist}
		} else if !errors.Is(taken, fs.ErrNotExist) {
			return taken
		}
		err = os.Rename(from, to)
	}
	if err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// SyncDir makes the names in dir durable: those of new files, of renamed and of removed ones.
// Some file systems (FUSE, SMB) cannot sync a directory. That is no error, as it
// is none to SQLite: there, the file system alone decides when a name is durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !unsyncable(err) {
		return err // it names dir
	}
	return nil
}

func (w Writer) syncDir(dir string) error {
	if err := w.step("syncdir", dir); err != nil {
		return err
	}
	if w.NoSync {
		return nil
	}
	if err := SyncDir(dir); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}

// MakeDir makes a directory (0700). See [Writer.MakeDir].
func MakeDir(dir string) error { return Writer{}.MakeDir(dir) }

// MakeDir makes a directory (0700) and what is missing above it, and makes the names durable:
// a power cut that takes the name of a directory takes all that is in it. A directory that
// exists is left as it is.
func (w Writer) MakeDir(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	above := filepath.Dir(dir)
	if above != dir {
		if err := w.MakeDir(above); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	} else if info, statErr := os.Stat(dir); statErr != nil {
		return errors.Join(err, statErr)
	} else if !info.IsDir() {
		return fmt.Errorf("%s is a file: name a directory, or move the file", dir)
	}
	// A directory that may be written but not read cannot be synced.
	if err := w.syncDir(above); err != nil && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
}
