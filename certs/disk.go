package certs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/ownership"
)

const (
	fileMode = 0o600
	dirMode  = 0o700 // of atomicfile.MakeDir
)

// makeDir makes the directory of the certificates.
func makeDir(w atomicfile.Writer, dir string) error {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return fmt.Errorf("%s is not a directory: move it out of the way", dir)
	}
	if err := w.MakeDir(dir); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	return nil
}

// replace writes data to the file that path means, and reports whether the file changed. It
// keeps the file's owner.
func replace(w atomicfile.Writer, path string, data []byte, mode fs.FileMode) (bool, error) {
	to, err := target(path)
	if err != nil {
		return false, err
	}
	f := atomicfile.File{Path: to, Data: data, Mode: mode}
	if info, err := os.Stat(to); err == nil {
		if !info.Mode().IsRegular() {
			return false, fmt.Errorf("write %s: it is not a regular file", path)
		}
		have, err := os.ReadFile(to)
		if err == nil && bytes.Equal(have, data) && (info.Mode().Perm() == mode || runtime.GOOS == "windows") {
			return false, nil
		}
		f.Owner = info
	} else if !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("write kubeconfig: %w", err)
	}
	if err := makeDir(w, filepath.Dir(to)); err != nil {
		return false, err
	}
	return true, w.Write(f)
}

// target follows symbolic links from path to the file that they mean, which need not exist.
// Replacing the link itself would break it. The error names what another user has placed there.
func target(path string) (string, error) {
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
