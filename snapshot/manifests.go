package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

const (
	manifestsName  = "manifests"
	manifestMost   = 16 << 20 // bytes of a manifest: the server applies no larger file
	manifestsMost  = 32 << 20 // of all, which are in memory
	manifestsCount = 4096     // Info has a checksum of each
)

// manifests returns the files of a directory of manifests, which may be a link. It leaves out links below, which may lead anywhere, hidden
// files, and what the server does not apply because it cannot read it or it is too large.
func manifests(dir string) (all []file, err error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer root.Close()
	total := 0
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		hidden := name != "." && strings.HasPrefix(path.Base(name), ".")
		if hidden || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			if e != nil && e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		f, err := readIn(root, name)
		if err != nil || f == nil {
			return err
		}
		all = append(all, *f)
		if total += len(f.content); total > manifestsMost || len(all) > manifestsCount {
			return fmt.Errorf("%s has more than %d files or %d MiB: move what is no manifest elsewhere", dir, manifestsCount, manifestsMost>>20)
		}
		return nil
	})
	return all, err
}

// readIn reads a manifest; nil if it cannot be read, or is too large.
func readIn(root *os.Root, name string) (*file, error) {
	f, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() > manifestMost {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(f, manifestMost))
	return &file{manifestsName + "/" + name, content, info.Mode().Perm()}, err
}

// manifestsDir returns the directory of manifests, and whether it is elsewhere than in the data directory.
func (s Source) manifestsDir() (dir string, elsewhere bool, err error) {
	dir, err = filepath.Abs(filepath.Join(s.DataDir, manifestsName))
	if s.ManifestsDir != "" && s.ManifestsDir != dir {
		return s.ManifestsDir, true, nil
	}
	return dir, false, err
}

// HasManifests reports whether the manifests of a cluster are those of a snapshot.
func (s Source) HasManifests(of *Snapshot) bool {
	dir, _, err := s.manifestsDir()
	if err != nil {
		return false
	}
	now, err := manifests(dir)
	return err == nil && slices.EqualFunc(now, of.filesIn(manifestsName), func(a, b file) bool {
		return a.name == b.name && a.mode == b.mode && bytes.Equal(a.content, b.content)
	})
}

// ManifestsIn returns where a restore into a data directory places the manifests, and how many files there are. Those of --manifests-dir
// have to be moved to where that is.
func (s *Snapshot) ManifestsIn(dataDir string) (dir string, files int) {
	return filepath.Join(s.manifestsAbove(dataDir), manifestsName), len(s.filesIn(manifestsName))
}

func (s *Snapshot) manifestsAbove(dataDir string) string {
	if s.ManifestsDir != "" {
		return filepath.Join(dataDir, Elsewhere)
	}
	return dataDir
}

// checkManifests returns [ErrOccupied] if a restore would have to replace a manifest.
func (s *Snapshot) checkManifests(dataDir string) error {
	_, err := missing(s.manifestsAbove(dataDir), s.filesIn(manifestsName))
	return err
}
