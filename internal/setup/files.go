// Package setup has what the installation of a server and that of a node share: a lock, files that
// can be put back, the machine's init system, and the wait until a service is ready.
package setup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/ownership"
)

// ServerMarker is the name of the file by which a server marks its data directory. See server/marker.
const ServerMarker = "karve-data"

// PreviousSuffix ends the names of the copies of replaced files.
const PreviousSuffix = ".previous"

// Files replaces files in such a way that they can be put back, by this process or after a power
// cut by the next one: path.previous is what path was before. A copy that exists already is of an
// installation that was cut short, and stays: the files in place never ran well.
// At no time is a file missing or incomplete.
type Files struct {
	touched []string // in the order of the replacements
	made    []string // those that did not exist before
}

// Interrupted reports whether an installation that replaced path was cut short.
func Interrupted(path string) bool { return exists(path + PreviousSuffix) }

// Replace gives path a new content. gid is the group of the file; -1 is this process' own.
func (f *Files) Replace(path string, data []byte, mode fs.FileMode, gid int) error {
	staged, err := Stage(path, mode, gid, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	defer os.Remove(staged) // after the renaming it is gone
	return f.ReplaceBy(path, staged)
}

// Stage writes a file beside path, with which [Files.ReplaceBy] can replace that.
func Stage(path string, mode fs.FileMode, gid int, write func(io.Writer) error) (staged string, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	t, err := os.CreateTemp(filepath.Dir(path), atomicfile.TempPattern)
	if err != nil {
		return "", fmt.Errorf("write %s: %w", path, err)
	}
	err = write(t)
	if err == nil && gid >= 0 {
		err = t.Chown(-1, gid)
	}
	if err == nil {
		err = errors.Join(t.Chmod(mode), t.Sync())
	}
	if err = errors.Join(err, t.Close()); err != nil {
		os.Remove(t.Name())
		return "", fmt.Errorf("write %s: %w", path, err)
	}
	return t.Name(), nil
}

// ReplaceBy gives a finished file in the same file system the name path.
func (f *Files) ReplaceBy(path, staged string) error {
	previous := path + PreviousSuffix
	switch {
	case exists(previous):
	case exists(path):
		if err := Keep(path, previous); err != nil {
			return fmt.Errorf("keep %s: %w", path, err)
		}
	default:
		f.made = append(f.made, path)
	}
	f.touched = append(f.touched, path)
	if err := atomicfile.Rename(staged, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Keep gives a file a second name, or a copy where the file system has no hard links.
func Keep(path, previous string) error {
	if os.Link(path, previous) == nil {
		return atomicfile.SyncDir(filepath.Dir(path))
	}
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	gid := -1
	if owner, ok := ownership.Of(info); ok && os.Geteuid() == 0 {
		gid = owner.GID
	}
	staged, err := Stage(previous, info.Mode().Perm(), gid, func(w io.Writer) error {
		_, err := io.Copy(w, from)
		return err
	})
	if err != nil {
		return err
	}
	return atomicfile.Rename(staged, previous)
}

// PutBack puts back what was replaced, and removes what did not exist before.
func (f *Files) PutBack() error {
	var problems []error
	for _, path := range slices.Backward(f.touched) {
		err := atomicfile.Rename(path+PreviousSuffix, path)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
			if slices.Contains(f.made, path) {
				err = os.Remove(path)
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, fmt.Errorf("put back %s: %w", path, err))
		}
	}
	f.touched, f.made = nil, nil
	return errors.Join(problems...)
}

// Forget removes the copies of these files: what is in place runs well.
func Forget(paths ...string) {
	for _, path := range paths {
		os.Remove(path + PreviousSuffix)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
