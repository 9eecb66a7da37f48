package envtest

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/karve-k8s/karve/datastore/directory"
)

// assetNames are the programs that envtest looks for in KUBEBUILDER_ASSETS.
var assetNames = []string{apiserverName, etcdName, "kubectl"}

// ownProgram returns the file of this program, not a link to it.
func ownProgram() (string, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	return self, nil
}

// thrownAway reports whether a program is one of `go run`, which removes it at its end.
func thrownAway(program string) bool {
	dir := filepath.Dir(program)
	return filepath.Base(dir) == "exe" && strings.Contains(dir, string(filepath.Separator)+"go-build")
}

// MakeAssets links the names of the assets to this program in dir, which it makes. With
// duplicate, and for a program of `go run`, it copies the program there. It replaces other
// files of those names only with force.
func MakeAssets(dir string, duplicate, force bool) error {
	self, err := ownProgram()
	if err != nil {
		return err
	}
	return makeAssets(self, dir, duplicate || thrownAway(self), force)
}

// makeAssets links the names to program in dir, which it makes. With duplicate, the first
// is a copy and the others are links to that. It checks the existing files before it
// changes anything.
func makeAssets(program, dir string, duplicate, force bool) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	ext := filepath.Ext(program)
	if ext != ".exe" {
		ext = ""
	}
	if filepath.Dir(program) == dir && slices.Contains(assetNames, strings.TrimSuffix(filepath.Base(program), ext)) && !duplicate {
		return fmt.Errorf("--dir %s: this program is in it, under the name %s: run it from elsewhere", dir, filepath.Base(program))
	}
	var foreign []error
	for _, name := range assetNames {
		path := filepath.Join(dir, name+ext)
		if why := notOurs(path, program); why != "" && !force {
			foreign = append(foreign, fmt.Errorf("--dir: %s is there and %s: name another directory, or replace it with --force", path, why))
		}
	}
	if len(foreign) > 0 {
		return errors.Join(foreign...)
	}
	target := program
	for _, name := range assetNames {
		path := filepath.Join(dir, name+ext)
		if err := place(target, path, duplicate); err != nil {
			return fmt.Errorf("--dir: %w", err)
		}
		if duplicate {
			duplicate, target = false, name+ext // a link beside it works wherever the directory is moved
		}
	}
	return nil
}

// module is the module in karve's build information.
const module = "github.com/karve-k8s/karve"

// notOurs says what a file is that must not be replaced without force. It is empty if there
// is no file, if the file is karve, or if it is a link that leads nowhere.
func notOurs(path, program string) string {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ""
	case err != nil:
		return err.Error()
	case !info.Mode().IsRegular():
		return "is no program"
	}
	if own, err := os.Stat(program); err == nil && os.SameFile(info, own) {
		return ""
	}
	if built, err := buildinfo.ReadFile(path); err != nil || built.Main.Path != module {
		return "is not karve"
	}
	return ""
}

// place makes path a link to target, or a copy of it, in one step. A program that is
// started meanwhile is the old one or the new one, and other processes may do the same.
func place(target, path string, duplicate bool) error {
	return directory.Place(path, true, func(temp *directory.TempDir) error {
		if duplicate {
			return copyProgram(target, temp.File())
		}
		return os.Symlink(target, temp.File())
	})
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}
