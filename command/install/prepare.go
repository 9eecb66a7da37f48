package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/karve-k8s/karve/command/install/check"
	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/destination"
	"github.com/karve-k8s/karve/internal/setup"
	"github.com/karve-k8s/karve/snapshot"
)

// stagePrefix begins the name of the directory in which install.sh leaves the program, beside the installed one. Its process follows.
const stagePrefix = ".karve-install."

// prepareAll does everything that can be done, and refused, while the installed version runs.
func (r *installation) prepareAll(ctx context.Context, given Options) (err error) {
	if err := r.notPackaged(ctx); err != nil {
		return err
	}
	if r.configFile, err = destination.Follow(r.Config); err != nil {
		return err
	}
	if err := r.claim(r.files, r.configFile); err != nil {
		return err
	}
	sweep(r.BinDir, filepath.Dir(r.Source))
	if r.staged, err = r.stage(); err != nil {
		return err
	}
	if r.Restore != nil {
		if given, err = r.restoreFirst(ctx, given); err != nil {
			return fmt.Errorf("--restore: %w", err)
		}
	}
	old, err := readConfig(r.Config, r.DataDir)
	if err == nil {
		err = r.configure(given)
	}
	if err == nil {
		r.owner, err = r.serviceOwner(ctx, r.config)
	}
	if err != nil {
		return err
	}
	undo, err := r.prepare(r.config, r.owner)
	if r.undo = append(r.undo, undo); err != nil {
		return err
	}
	if dir := filepath.Dir(r.configFile); !setup.Exists(dir) {
		r.undo = append(r.undo, func() { os.Remove(r.temp); os.Remove(dir) })
	}
	r.temp, err = setup.Stage(r.configFile, 0o600, -1, func(w io.Writer) error { _, err := w.Write(r.config.text); return err })
	if err == nil && r.Check {
		err = r.lookAround(ctx, old.dataDir)
	}
	return err
}

// configure is the configuration file with these options.
func (r *installation) configure(given Options) (err error) {
	if r.config, err = changedConfig(r.Config, given, r.DataDir); err != nil {
		return err
	}
	return r.config.checkDirectories()
}

// restoreFirst restores the backup before the installation reads the configuration file, which may come from it. It
// returns the options with the places of the restored data, because that file may name others.
func (r *installation) restoreFirst(ctx context.Context, given Options) (Options, error) {
	if !r.fresh {
		return nil, fmt.Errorf("%s is installed already: this is for a new machine. To take an existing cluster back, use karve reset or karve datastore restore", r.Program())
	}
	if err := r.configure(given); err != nil {
		return nil, err
	}
	dirs, begun := r.config.directories(), snapshot.Unfinished(r.config.dataDir) != nil
	whole := slices.DeleteFunc(slices.Clone(dirs), func(dir string) bool { return !isEmpty(dir) && !begun })
	stays := slices.ContainsFunc(dirs, setup.Exists)
	made := slices.DeleteFunc(append(dirs, filepath.Dir(r.configFile), r.configFile), setup.Exists)
	endpoint := r.config.option("datastore-endpoint")
	if err := r.Restore(ctx, r.Config, r.config.dataDir, endpoint); err != nil {
		return nil, err
	}
	r.undo = append(r.undo, func() {
		if stays {
			r.Warn("the restored cluster stays in %s, which was there before: run this again without --restore", r.config.dataDir)
			return
		}
		for _, path := range made {
			os.RemoveAll(path)
		}
	})
	owner, err := r.serviceOwner(ctx, r.config)
	for _, dir := range whole {
		if err == nil {
			err = r.give(dir, owner)
		}
	}
	if err != nil {
		return nil, err
	}
	given = maps.Clone(given)
	given["data-dir"], given["datastore-endpoint"] = []string{r.config.dataDir}, nil
	if endpoint != "" {
		given["datastore-endpoint"] = []string{endpoint}
	}
	return given, nil
}

// give makes the service the owner of a directory in which only a restore has made files.
func (r *installation) give(dir string, o owner) error {
	if r.User || r.Service.Init == setup.None {
		return nil
	}
	return filepath.WalkDir(real(dir), func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = os.Lchown(path, o.UID, o.GID)
		}
		return err
	})
}

// sweep removes what install.sh has left beside the programs when it was killed: the names end in its process.
func sweep(dir, own string) {
	atomicfile.Writer{}.Sweep(dir)
	stages, _ := filepath.Glob(filepath.Join(dir, stagePrefix+"*"))
	for _, stage := range stages {
		info, err := os.Lstat(stage)
		pid, _ := strconv.Atoi(strings.TrimPrefix(filepath.Base(stage), stagePrefix))
		downloads := pid > 0 && setup.Runs(pid) && err == nil && time.Since(info.ModTime()) < 24*time.Hour
		if stage != own && !downloads {
			os.RemoveAll(stage)
		}
	}
}

// stage puts the program beside the installed one, so that it fails here if it does not fit.
func (i *Installer) stage() (string, error) {
	if strings.HasPrefix(filepath.Base(filepath.Dir(i.Source)), stagePrefix) && filepath.Dir(filepath.Dir(i.Source)) == i.BinDir {
		return i.Source, os.Chmod(i.Source, 0o755)
	}
	in, err := os.Open(i.Source)
	if err != nil {
		return "", err
	}
	defer in.Close()
	return setup.Stage(i.Program(), 0o755, -1, func(w io.Writer) error { _, err := io.Copy(w, in); return err })
}

// lookAround asks the new version whether it would start on this machine in place of the one that runs. It prints the
// findings, and fails if a service would not start.
func (r *installation) lookAround(ctx context.Context, replaces string) error {
	args := []string{"check", "-o", "json", "--config", r.temp}
	if setup.Exists(replaces) {
		args = append(args, "--replaces", replaces)
	}
	text, failed := r.Service.Run(ctx, r.staged, args...)
	var found []check.Finding
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		return errors.Join(failed, fmt.Errorf("karve check: %w", err))
	}
	for _, f := range found {
		if f.Result == check.Warn || f.Result == check.Fail {
			do := ""
			if f.Do != "" {
				do = " (" + f.Do + ")"
			}
			r.Warn("check: %s: %s: %s%s", f.Result, f.Check, strings.ReplaceAll(f.Found, r.temp, r.Config), do)
		}
	}
	if failed == nil || r.Service.Init == setup.None {
		return nil
	}
	return fmt.Errorf("karve check: %d of %d checks failed; to install nevertheless, set KARVE_INSTALL_CHECK=no", check.Failed(found), len(found))
}
