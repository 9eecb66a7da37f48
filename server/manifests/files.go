package manifests

import (
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

// maxFile is the size of the largest file that is read.
const maxFile = 16 << 20

// extensions are those of manifests.
var extensions = []string{".yaml", ".yml", ".json"}

// unit is what is applied as a whole: a file. A directory that cannot be read is one, too.
type unit struct {
	name  string // relative to the directory, with slashes; that of a directory ends with one
	path  string
	stamp string // differs after each change
	err   error  // why it cannot be read
}

// add makes the stamp depend on a file.
func (u *unit) add(real string, info fs.FileInfo) {
	u.stamp += fmt.Sprintf("%s %d %d %s\n", real, info.Size(), info.ModTime().UnixNano(), version(real))
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		u.fail(fmt.Errorf("%s is no regular file of at most %d MiB", real, maxFile>>20))
	}
}

func (u *unit) fail(err error) {
	u.err = errors.Join(u.err, err)
	u.stamp += err.Error() + "\n"
}

// read returns the objects of the unit.
func (u *unit) read() ([]object, error) {
	if u.err != nil {
		return nil, u.err
	}
	text, err := readFile(u.path)
	if err != nil {
		return nil, err
	}
	return parse(text, path.Ext(u.name) == ".json")
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s has more than %d MiB", path, maxFile>>20)
	}
	return text, err
}

// ignored reports whether a name is that of a hidden or an editor's temporary file.
func ignored(name string) bool {
	return strings.ContainsAny(name[:1], ".#~") || strings.HasSuffix(name, "~")
}

// scan returns the units of a directory, sorted by name, without reading a file. The error is fs.ErrNotExist if there is
// no directory, and otherwise says why nothing in it can be trusted.
func scan(dir string) ([]*unit, error) {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	s := scanner{root: root, seen: map[string]bool{}}
	if err := s.directory(root, ""); err != nil {
		return nil, err
	}
	slices.SortFunc(s.units, func(a, b *unit) int { return strings.Compare(a.name, b.name) })
	return s.units, nil
}

type scanner struct {
	root  string
	seen  map[string]bool // directories, against loops of links
	units []*unit
}

// kustomizations are the names of files for kustomize, which the server does not run.
var kustomizations = []string{"kustomization.yaml", "kustomization.yml", "Kustomization"}

// below adds what a directory below the root has. One that cannot be read does not keep others from being applied.
func (s *scanner) below(dir, name string) {
	err := s.directory(dir, name)
	if err == nil || errors.Is(err, fs.ErrNotExist) { // it has just been removed
		return
	}
	u := &unit{name: name + "/"}
	u.fail(err)
	s.units = append(s.units, u)
}

// directory adds the files of a directory as units.
func (s *scanner) directory(dir, name string) error {
	if s.seen[dir] {
		return nil
	}
	s.seen[dir] = true
	info, err := os.Stat(dir)
	if err == nil {
		err = safe(dir, info)
	}
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return slices.Contains(kustomizations, e.Name()) }) {
		return fmt.Errorf("a kustomization is not applied: put what it builds here instead: karve kubectl kustomize %s", dir)
	}
	for _, e := range entries {
		if ignored(e.Name()) {
			continue
		}
		name := path.Join(name, e.Name())
		real, info, err := s.resolve(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) && e.Type()&fs.ModeSymlink == 0 {
			continue // it has just been removed
		}
		if err == nil && info.IsDir() {
			s.below(real, name)
			continue
		}
		if !slices.Contains(extensions, path.Ext(name)) {
			continue
		}
		u := &unit{name: name, path: real}
		s.units = append(s.units, u)
		if err != nil {
			u.fail(err)
		} else {
			u.add(real, info)
		}
	}
	return nil
}

// resolve follows links inside the root, and checks what it finds.
func (s *scanner) resolve(path string) (string, fs.FileInfo, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return path, nil, err
	}
	if !within(s.root, real) {
		return path, nil, fmt.Errorf("it is a link to %s, outside of %s", real, s.root)
	}
	info, err := os.Stat(real)
	if err != nil {
		return real, nil, err
	}
	// Only a link leads into a hidden directory, which nothing else looks at.
	for up := filepath.Dir(real); real != path && up != s.root; up = filepath.Dir(up) {
		parent, err := os.Stat(up)
		if err == nil {
			err = safe(up, parent)
		}
		if err != nil {
			return real, nil, err
		}
	}
	if info.IsDir() {
		return real, info, nil // directory checks it
	}
	return real, info, safe(real, info)
}

// within reports whether path is root or below it. Both are clean.
func within(root, path string) bool {
	rel, err := filepath.Rel(root, path)
	return err == nil && filepath.IsLocal(rel)
}
