package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/karve-k8s/karve/internal/setup"
	"github.com/karve-k8s/karve/internal/shell"
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
	unlock, err := setup.Lock(r.BinDir)
	if err != nil {
		return err
	}
	defer unlock()
	if !exists(r.Uninstall) && !exists(r.Program()) {
		return fmt.Errorf("no installed Karve is here: there is no %s", r.Program())
	}
	if !exists(r.Uninstall) {
		if err := r.notPackaged(ctx); err != nil {
			return err
		}
	}
	c, err := readConfig(r.Config, r.DataDir)
	if err != nil {
		return err // it says where the data are
	}
	programStays := false
	if r.Node != nil {
		if programStays, err = r.Node(ctx); err != nil {
			return err
		}
	}
	if err := r.Service.Remove(ctx); err != nil {
		return err
	}
	if r.Service.Init == setup.None && runs(c.dataDir) {
		r.Say("a running karve is not stopped: stop it yourself")
	}
	var left []string
	if r.Purge {
		left = r.purge(c)
	}
	if dropIns := r.Service.File + ".d"; r.Service.File != "" && exists(dropIns) && os.Remove(dropIns) != nil {
		left = append(left, dropIns)
	}
	problems := []error{}
	if r.Rotation != "" {
		os.Remove(r.Rotation)
	}
	if !programStays {
		r.unlinkKubectl()
		problems = append(problems, os.Remove(r.Program()))
	}
	setup.Forget(r.Place.files()...)
	problems = append(problems, os.Remove(r.Uninstall))
	for _, err := range problems {
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if !r.Purge {
		r.Say("Karve is removed; %s and %s are kept", c.dataDir, r.Config)
		r.Say("to delete them: rm -r %s", strings.Join(r.kept(c), " "))
		if len(left) > 0 {
			r.Say("these are kept too, as the configuration may need them: %s", strings.Join(left, " "))
		}
		return nil
	}
	if _, ok, _ := lookUp(); ok && !r.User {
		r.Say("the user %s is kept: files may be its own, and would be those of the next user with its number", serviceUser)
	}
	if len(left) == 0 {
		r.Say("Karve and its data are removed")
	} else {
		r.Warn("Karve is removed. These are kept, because Karve has not made them: %s", strings.Join(left, " "))
	}
	return nil
}

// kept are the arguments for rm that delete what a purge would: the configuration, and Karve's own directories.
func (r *Remover) kept(c *config) []string {
	all := []string{shell.Quoted(r.Config)}
	for _, dir := range c.everything() {
		if marker.Ours(dir) {
			all = append(all, shell.Quoted(dir))
		}
	}
	return all
}

// purge removes the data and the configuration, and returns what it has left.
func (r *Remover) purge(c *config) (left []string) {
	for _, dir := range c.everything() {
		if marker.Ours(dir) {
			os.RemoveAll(real(dir))
			os.Remove(dir) // a link to it
		} else if info, err := os.Lstat(dir); err == nil && info.IsDir() {
			os.Remove(dir) // if it is empty
		}
		if exists(dir) {
			left = append(left, dir)
		}
	}
	os.Remove(r.Config)
	setup.Forget(r.Config)
	place := filepath.Dir(r.Config)
	os.Remove(place) // unless somebody else's files are there
	entries, _ := os.ReadDir(place)
	for _, e := range entries {
		left = append(left, filepath.Join(place, e.Name()))
	}
	if r.Service.Log != "" {
		logs, _ := filepath.Glob(r.Service.Log + "*")
		for _, log := range logs {
			os.Remove(log)
		}
	}
	return left
}
