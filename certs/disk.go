package certs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/destination"
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
	to, err := destination.Follow(path)
	if err != nil {
		return false, err
	}
	f := atomicfile.File{Path: to, Data: data, Mode: mode}
	if info, err := os.Stat(to); err == nil {
		if !info.Mode().IsRegular() {
			return false, fmt.Errorf("write %s: it is not a regular file", path)
		}
		have, err := os.ReadFile(to)
		if err == nil && bytes.Equal(have, data) && info.Mode().Perm() == mode {
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
