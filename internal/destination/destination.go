// Package destination decides where a command writes a file that its user has named.
package destination

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/ownership"
)

// Stdout is the name of standard output.
const Stdout = "-"

// Rules say which files a command may write.
type Rules struct {
	Overwrite bool
	Stream    bool     // the command can write to [Stdout], too
	Outside   []string // directories of a cluster; an empty name is none
	But       []string // files, and directories of files, that are for users all the same
}

func (r Rules) hint() string {
	if !r.Stream {
		return ""
	}
	return ", or " + Stdout + " for standard output"
}

// Find returns the file that a user's name for it means: links are followed. It is a regular file, which
// only Overwrite allows, or does not exist. The error for one that exists is [fs.ErrExist].
func Find(name string, r Rules) (string, error) {
	file, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(file)
	switch {
	case err != nil: // whoever makes the file meets the error, if it is not that there is none
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is not a regular file: name another%s", name, r.hint())
	case isOutput(info):
		return "", fmt.Errorf("%s is where this command writes its messages: name another file%s", name, r.hint())
	}
	if file, err = Follow(file); err != nil {
		return "", err
	}
	if _, err := os.Lstat(file); err == nil && !r.Overwrite {
		return "", &fs.PathError{Op: "write", Path: file, Err: fs.ErrExist}
	}
	for _, dir := range r.Outside {
		if isBelow(file, dir) && !isOne(file, r.But) {
			return "", fmt.Errorf("%s is in %s, where only karve itself makes files: name a file elsewhere", name, dir)
		}
	}
	return file, nil
}

// isOutput reports whether a file is what this process writes to.
func isOutput(info fs.FileInfo) bool {
	for _, stream := range []*os.File{os.Stdout, os.Stderr} {
		if open, err := stream.Stat(); err == nil && os.SameFile(open, info) {
			return true
		}
	}
	return false
}

// isBelow reports whether a file, which need not exist, is somewhere in a directory, by whatever name.
func isBelow(file, dir string) bool {
	for at := filepath.Dir(file); ; at = filepath.Dir(at) {
		if atomicfile.Same(at, dir) {
			return true
		}
		if at == filepath.Dir(at) {
			return false
		}
	}
}

// isOne reports whether a file is one of places, or directly in one of them.
func isOne(file string, places []string) bool {
	for _, place := range places {
		if atomicfile.Same(filepath.Dir(file), place) || filepath.Base(file) == filepath.Base(place) && atomicfile.Same(filepath.Dir(file), filepath.Dir(place)) {
			return true
		}
	}
	return false
}

// Act calls body as the user in whose directory a file is to be made, if this process is root's. If a directory above that one belongs to
// another user, who can replace everything below, it acts as that user.
func Act(file string, body func() error) error { return ownership.ActOutside(usersDir(file), body) }

// usersDir returns the lowest directory above a file that is another user's than root's, and otherwise that of the file.
func usersDir(file string) string {
	dir := filepath.Dir(file)
	for at := dir; ; at = filepath.Dir(at) {
		if _, foreign, err := ownership.Foreign(at); err == nil && foreign {
			return at
		}
		if at == filepath.Dir(at) {
			return dir
		}
	}
}

// Follow follows symbolic links from path to the file that they mean, which need not exist.
// Replacing the link itself would break it. The error names what another user has placed there.
func Follow(path string) (string, error) {
	for range 40 {
		if err := placed(path); err != nil {
			return "", err
		}
		to, err := os.Readlink(path)
		if err != nil {
			return path, nil // not a link, or nothing there
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return "", fmt.Errorf("%s: too many symbolic links", path)
}

// placed returns an error if another user, who is not root, chose where a write to path goes: by a
// symbolic link in the path, or by a file in a directory where that user may make one. A file keeps its
// owner, and would hand that user what is written.
func placed(path string) error {
	for at := path; ; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		switch by, foreign := stranger(info, err); {
		case !foreign:
		case info.Mode()&fs.ModeSymlink != 0:
			return fmt.Errorf("write %s: the symbolic link %s belongs to %s and is not followed: remove it, or name the file that it means", path, at, by)
		case at == path && info.Mode().IsRegular():
			if dir, err := os.Stat(filepath.Dir(at)); err == nil && dir.Mode().Perm()&0o022 != 0 {
				return fmt.Errorf("write %s: the file belongs to %s, in a directory where others may make files: remove it, or name a file elsewhere", path, by)
			}
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}

// stranger returns the owner of a file, and whether that is another user, who is not root.
func stranger(info fs.FileInfo, err error) (by ownership.Owner, foreign bool) {
	if err != nil || ownership.Mine(info) {
		return by, false // whoever uses a file that cannot be looked at gets the error
	}
	by, known := ownership.Of(info)
	return by, known && by.UID != 0
}
