package status

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/destination"
)

// maxManifest is the size of the largest file that may be replaced.
const maxManifest = 1 << 20

// ManifestFile is a file among the manifests of a server.
type ManifestFile struct {
	Name string // relative to the directory, with slashes
	// Edited reports whether somebody has changed what the file has. Such a file is not replaced, unless Overwrite says so.
	Edited    func(text []byte) bool
	Overwrite bool
}

// Apply writes each of texts to the file, and waits until the running server has applied it. It shows what became of the last one. The
// result is false if another server leads, which applies its own files.
func (f ManifestFile) Apply(c *cli.Context, texts ...[]byte) (applied bool, err error) {
	err = withRunning(c, func(client *control.Client) error {
		all, err := client.Manifests(c.Context)
		switch {
		case err != nil:
			return err
		case all.Dir == "":
			return errors.New("this server applies no manifests: it is not ready yet, or has --no-controllers")
		}
		path := filepath.Join(all.Dir, filepath.FromSlash(f.Name))
		for _, text := range texts {
			if err := f.place(path, text); err != nil {
				return err
			}
			if all, err = client.Manifests(c.Context); err != nil {
				return err
			} else if all.Problem == control.AnotherLeads {
				continue
			}
			if all, err = client.ApplyManifests(c.Context); err != nil {
				return fmt.Errorf("%s is written, but not applied: %w", path, err)
			}
		}
		if all.Problem == control.AnotherLeads {
			fmt.Fprintf(c.App.Writer, "%s is written; another server leads, and applies its own files: run this command there, too\n", path)
			return nil
		}
		applied = true
		return f.show(c, path, *all)
	})
	return applied && err == nil, err
}

// place writes the file, unless somebody has edited it.
func (f ManifestFile) place(path string, text []byte) error {
	err := destination.Act(path, func() error {
		old, err := readManifest(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
		case err != nil:
			return err
		case bytes.Equal(old, text):
			return nil
		case f.Edited(old) && !f.Overwrite:
			return fmt.Errorf("%s is not as karve made it: somebody has edited it, and nothing was changed\n-o yaml prints what is new; --force-conflicts replaces the file", path)
		}
		return atomicfile.Write(path, text, 0o644)
	})
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w\nmake the directory %s for the server's user, or write the file yourself with what -o yaml prints", err, filepath.Dir(path))
	}
	return err
}

func readManifest(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxManifest {
		return nil, fmt.Errorf("%s is no regular file of at most %d MiB", path, maxManifest>>20)
	}
	return os.ReadFile(path)
}

// show writes what became of the file. A directory that cannot be read stands for its files.
func (f ManifestFile) show(c *cli.Context, path string, all control.Manifests) error {
	all.Files = slices.DeleteFunc(all.Files, func(m control.Manifest) bool { return m.File != f.Name && !strings.HasPrefix(f.Name, m.File) })
	if len(all.Files) == 0 && all.Problem == "" {
		return fmt.Errorf("%s is not among the server's manifests", path)
	}
	all.Strays = nil
	describeManifests(all, func(name, format string, args ...any) { fmt.Fprintf(c.App.Writer, format+"\n", args...) })
	if all.Problem != "" || slices.ContainsFunc(all.Files, func(m control.Manifest) bool { return m.State == control.Failed }) {
		return cli.Exit("", 1)
	}
	return nil
}
