package install

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/karve-k8s/karve/internal/destination"
	"github.com/karve-k8s/karve/internal/setup"
	"github.com/karve-k8s/karve/server/marker"
)

// Remover removes a server. The fields are those of an [Installer].
type Remover struct {
	Place
	Purge bool // the data and the configuration too
	// Node removes this server's node. stays: there is one of another server, which needs the program.
	Node func(ctx context.Context) (stays bool, err error)
	Say  func(format string, args ...any)
	Warn func(format string, args ...any)
}

// Target is the directory of the data that a purge would remove.
func (r *Remover) Target() string {
	c, err := readConfig(r.Config, r.DataDir)
	if err != nil {
		return r.DataDir
	}
	return c.dataDir
}

// Run stops the service and removes what was installed. It leaves what Karve did not make, and names it.
func (r *Remover) Run(ctx context.Context) error {
	files, err := setup.Begin(r.BinDir)
	if err != nil {
		return err
	}
	defer files.End()
	if !setup.Ours(r.Uninstall) && !setup.Ours(r.Service.File) {
		if err := r.notPackaged(ctx); err != nil {
			return err
		}
		return fmt.Errorf("no installed Karve is here: there is no %s, which karve install makes", r.Uninstall)
	}
	c, err := readConfig(r.Config, r.DataDir)
	if err != nil {
		return err // it says where the data are
	}
	if !filepath.IsAbs(c.dataDir) {
		return fmt.Errorf("%s: data-dir: %s is relative, and where it is depends on how the server was started: write an absolute path; nothing was removed", r.Config, c.dataDir)
	}
	service := setup.Ours(r.Service.File)
	if r.Purge && !(service && r.Service.Running(ctx)) { // otherwise the service has the lock
		if err := c.inUse(); err != nil {
			return fmt.Errorf("%w; nothing was removed", err)
		}
	}
	programStays := false
	if r.Node != nil {
		if programStays, err = r.Node(ctx); err != nil {
			return err
		}
	}
	if service {
		if err := r.Service.Stop(ctx); err != nil {
			return fmt.Errorf("%w; nothing was removed", err)
		}
	}
	if err := c.inUse(); err != nil && r.Purge {
		return fmt.Errorf("%w; the service is stopped, and nothing was removed", err)
	} else if err != nil && !service {
		r.Say("a running karve is not stopped: stop it yourself")
	}
	var left []string
	if service {
		if err := r.Service.Remove(ctx); err != nil {
			return err
		}
	} else if setup.Exists(r.Service.File) {
		left = append(left, r.Service.File)
	}
	sweep(r.BinDir, "")
	config, err := destination.Follow(r.Config)
	if err != nil {
		config = r.Config
	}
	for _, path := range r.files(config) {
		_ = files.Claim(path, true) // what a killed installation has staged
	}
	if r.Purge {
		left = append(left, r.purge(c)...)
	}
	paths := []string{r.Uninstall} // the last one, because without it there is nothing to remove
	if !programStays {
		r.unlinkKubectl()
		paths = append(paths, r.Program())
	}
	if r.Rotation != "" {
		paths = append(paths, r.Rotation)
	}
	if dropIns := r.Service.File + ".d"; r.Service.File != "" && setup.Exists(dropIns) && os.Remove(dropIns) != nil {
		left = append(left, dropIns)
	}
	files.Forget()
	for _, path := range slices.Backward(paths) {
		if setup.Ours(path) {
			if err := os.Remove(path); err != nil {
				return err
			}
		} else if setup.Exists(path) {
			left = append(left, path)
		}
	}
	if !r.Purge {
		kept := slices.DeleteFunc(append([]string{r.Config}, c.everything()...), func(path string) bool { return !setup.Exists(path) })
		r.Say("Karve is removed. These are kept: %s", strings.Join(kept, " "))
		if len(left) > 0 {
			r.Say("these are kept too, as the configuration may need them: %s", strings.Join(left, " "))
		}
		return nil
	}
	if _, ok, _ := lookUp(); ok && !r.User {
		r.Say("the user %s is kept: the next user with its number would own its files", serviceUser)
	}
	if len(left) == 0 {
		r.Say("Karve and its data are removed")
	} else {
		r.Warn("Karve is removed. These are kept, because Karve has not made them: %s", strings.Join(left, " "))
	}
	return nil
}

// purge removes the data and the configuration, and returns what it has left.
func (r *Remover) purge(c *config) (left []string) {
	dirs := c.everything()
	slices.SortFunc(dirs, func(a, b string) int { return len(b) - len(a) }) // one may be in another
	for _, dir := range dirs {
		left = append(left, purgeDir(dir)...)
	}
	if info, err := os.Lstat(r.Config); err == nil && info.Mode().IsRegular() { // a link is the user's
		os.Remove(r.Config)
	}
	place := filepath.Dir(r.Config)
	os.Remove(place) // unless somebody else's files are there
	entries, _ := os.ReadDir(place)
	for _, e := range entries {
		left = append(left, filepath.Join(place, e.Name()))
	}
	if r.Service.Log != "" {
		for _, rotated := range []string{"", ".[1-3]", ".[1-3].gz"} {
			logs, _ := filepath.Glob(r.Service.Log + rotated)
			for _, log := range logs {
				os.Remove(log)
			}
		}
	}
	return left
}

// purgeDir removes what Karve has made in a directory, and returns what stays: mounts, and everything with another name.
// The mark stays with that, so that the next installation goes on there.
func purgeDir(dir string) (left []string) {
	place := real(dir)
	if !setup.Exists(place) {
		return nil
	}
	root, err := os.OpenRoot(place)
	if err != nil {
		return []string{dir}
	}
	defer root.Close()
	if marker.Ours(dir) {
		table, err := os.ReadFile(setup.MountTable)
		if err != nil {
			return []string{dir}
		}
		entries, _ := fs.ReadDir(root.FS(), ".")
		for _, e := range entries {
			name := e.Name()
			path := filepath.Join(place, name)
			own := marker.OwnName(name) || name == statsFile
			if name != marker.File && name != lostFound && (!own || setup.Mounted(string(table), path) || root.RemoveAll(name) != nil) {
				left = append(left, path)
			}
		}
		if len(left) == 0 {
			root.Remove(marker.File)
		}
	}
	switch {
	case len(left) > 0:
		return left
	case os.Remove(place) != nil: // it is not empty, or a mount itself
		return []string{dir}
	}
	os.Remove(dir) // a link to it
	return nil
}
