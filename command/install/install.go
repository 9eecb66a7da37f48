package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/karve-k8s/karve/command/check"
	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/setup"
)

// stagePrefix begins the name of the directory in which install.sh leaves the program, beside the installed one.
const stagePrefix = ".karve-install."

// Installer installs a server. All fields are required, but Check and Restore.
type Installer struct {
	Place
	Source  string // the program to install
	Version string // what it is called
	Check   bool   // karve check decides before anything is changed
	Timeout time.Duration
	// Ready returns an error as long as `karve status` does not find the server ready.
	Ready func(ctx context.Context, dataDir string) error
	// Restore rebuilds the cluster of a backup, and may place its configuration file; nil if there is no backup.
	Restore func(ctx context.Context, config, dataDir, datastoreEndpoint string) error
	Say     func(format string, args ...any)
	Warn    func(format string, args ...any)
}

// installation is one run of an Installer.
type installation struct {
	*Installer
	config  *config
	owner   owner
	files   setup.Files
	backup  backup
	fresh   bool // there is no earlier version to return to
	running bool // the service ran before
	unready error
}

// Run installs the program with these options, or upgrades what is installed. If the new version does not become
// ready, the earlier one returns, with its options and its data. It returns the data directory.
func (i *Installer) Run(ctx context.Context, given Options) (dataDir string, err error) {
	unlock, err := setup.Lock(i.BinDir)
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := i.notPackaged(ctx); err != nil {
		return "", err
	}
	i.sweep()
	if i.Restore != nil {
		if given, err = i.restoreFirst(ctx, given); err != nil {
			return "", fmt.Errorf("--restore: %w; nothing was installed", err)
		}
	}
	r := &installation{Installer: i, fresh: !exists(i.Program()) && !setup.Interrupted(i.Program())}
	if err := r.run(ctx, given); err != nil {
		return "", err
	}
	return r.config.dataDir, nil
}

func (r *installation) run(ctx context.Context, given Options) error {
	unchanged := func(err error) error {
		if r.fresh {
			return fmt.Errorf("%w; nothing was installed", err)
		}
		return fmt.Errorf("%w; nothing was changed: the installed version is as it was", err)
	}
	staged, err := r.stage()
	if err != nil {
		return unchanged(err)
	}
	defer os.Remove(staged) // unless it got its name
	old, err := readConfig(r.Config, r.DataDir)
	if err != nil {
		return unchanged(err)
	}
	if r.config, err = changedConfig(r.Config, given, r.DataDir); err != nil {
		return unchanged(err)
	}
	if err := r.config.checkDirectories(); err != nil {
		return unchanged(err)
	}
	temp, err := r.writeTemp()
	if err != nil {
		return unchanged(err)
	}
	defer os.Remove(temp)
	if r.owner, err = r.serviceOwner(ctx, r.config); err != nil {
		return unchanged(err)
	}
	undo, err := r.prepare(r.config, r.owner)
	if err == nil && r.Check {
		err = r.lookAround(ctx, staged, temp, old.dataDir)
	}
	if err != nil {
		undo()
		return unchanged(err)
	}
	unit := []byte(r.unit(r.config))
	same := sameFile(staged, r.Program())
	r.running = r.Service.Running(ctx)
	interrupted := setup.Interrupted(r.Program())
	if r.running && r.ready(ctx) {
		if same && isFile(r.Config, r.config.text) && isFile(r.Service.File, unit) {
			setup.Forget(r.Place.files()...) // an upgrade that was cut short has succeeded
			r.Say("%s is installed already, with these options, and ready", r.Version)
			return nil
		}
		setup.Forget(r.Place.files()...)
		interrupted = false
	}
	if err := r.Service.Stop(ctx); err != nil {
		return unchanged(fmt.Errorf("the running version could not be stopped: %w", err))
	}
	r.backup = backupOf(r.config)
	if err := r.secure(ctx, staged, temp, same, interrupted); err != nil {
		return r.restart(ctx, err)
	}
	if err := r.switchOver(ctx, staged, unit); err != nil {
		return r.rollBack(ctx, err)
	}
	if err := r.begin(ctx); err != nil {
		return r.rollBack(ctx, err)
	}
	setup.Forget(r.Place.files()...)
	if r.Service.Init != setup.None {
		if err := r.Service.Enable(ctx); err != nil {
			r.Warn("the service does not start with the machine: %v", err)
		}
	}
	r.whatNext(ctx)
	return nil
}

// restoreFirst restores the backup before the installation reads the configuration file, which may come from it. It
// returns the options with the places of the restored data, because that file may name others.
func (i *Installer) restoreFirst(ctx context.Context, given Options) (Options, error) {
	if exists(i.Program()) || setup.Interrupted(i.Program()) {
		return nil, fmt.Errorf("%s is installed already: this is for a new machine. To take an existing cluster back, use karve reset or karve datastore restore", i.Program())
	}
	c, err := changedConfig(i.Config, given, i.DataDir)
	if err != nil {
		return nil, err
	}
	if err := c.checkDirectories(); err != nil {
		return nil, err
	}
	endpoint := c.option("datastore-endpoint")
	if err := i.Restore(ctx, i.Config, c.dataDir, endpoint); err != nil {
		return nil, err
	}
	given = maps.Clone(given)
	given["data-dir"], given["datastore-endpoint"] = []string{c.dataDir}, nil
	if endpoint != "" {
		given["datastore-endpoint"] = []string{endpoint}
	}
	return given, nil
}

// sweep removes what installations that were killed have left.
func (i *Installer) sweep() {
	atomicfile.Writer{}.Sweep(i.BinDir)
	stages, _ := filepath.Glob(filepath.Join(i.BinDir, stagePrefix+"*"))
	for _, dir := range stages { // another one may be downloading just now
		if info, err := os.Stat(dir); err == nil && time.Since(info.ModTime()) > 24*time.Hour {
			os.RemoveAll(dir)
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

// writeTemp writes the new configuration where programs can read it that run before it is in place.
func (r *installation) writeTemp() (string, error) {
	f, err := os.CreateTemp("", "karve-config-")
	if err != nil {
		return "", err
	}
	_, err = f.Write(r.config.text)
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(f.Name())
	}
	return f.Name(), err
}

// lookAround asks the new version whether it would start on this machine in place of the one that runs. It prints the
// findings, and fails if a service would not start.
func (r *installation) lookAround(ctx context.Context, program, config, replaces string) error {
	args := []string{"check", "-o", "json", "--config", config}
	if exists(replaces) {
		args = append(args, "--replaces", replaces)
	}
	text, failed := r.Service.Run(ctx, program, args...)
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
			r.Warn("check: %s: %s: %s%s", f.Result, f.Check, strings.ReplaceAll(f.Found, config, r.Config), do)
		}
	}
	if failed == nil || r.Service.Init == setup.None {
		return nil
	}
	return fmt.Errorf("karve check: %d of %d checks failed; to install nevertheless, set KARVE_INSTALL_CHECK=no", check.Failed(found), len(found))
}

// secure makes the way back for the data.
func (r *installation) secure(ctx context.Context, staged, temp string, same, interrupted bool) error {
	if interrupted {
		r.Warn("an earlier upgrade was cut short. If this one fails, the version before both returns")
	}
	switch {
	case same && !interrupted:
		if !r.config.external() && r.config.hasData() {
			r.Say("this version is installed already, and converts nothing: no backup is made")
		}
		return nil
	case r.config.external():
		r.Warn("the datastore is an external one: back it up yourself. If the upgrade fails, only the program is restored")
		return nil
	case !r.config.hasData(): // or they are in memory: the server's end is theirs, whatever its version
		return nil
	case interrupted && r.backup.find():
		r.Say("the backup of before that upgrade stays: %s", r.backup.file)
		return nil
	}
	program := r.Program()
	if interrupted {
		program += setup.PreviousSuffix
	} else if r.fresh { // karve uninstall has left the data
		program = staged
	}
	return r.backUp(ctx, &r.backup, program, temp)
}

// switchOver puts everything in its place.
func (r *installation) switchOver(ctx context.Context, staged string, unit []byte) error {
	for _, dir := range r.config.directories() {
		if err := r.own(dir, r.owner); err != nil {
			return err
		}
	}
	if err := r.files.ReplaceBy(r.Program(), staged); err != nil {
		return err
	}
	mode, gid := os.FileMode(0o640), r.owner.GID
	if r.User {
		mode, gid = 0o600, -1
	}
	script := "#!/bin/sh\n# Written by karve install.\nexec '" + strings.ReplaceAll(r.Program(), "'", `'\''`) + "' uninstall \"$@\"\n"
	err := r.files.Replace(r.Config, r.config.text, mode, gid)
	if err == nil {
		err = r.files.Replace(r.Uninstall, []byte(script), 0o755, -1)
	}
	if err == nil && r.Service.Init != setup.None {
		mode := os.FileMode(0o644)
		if r.Service.Init == setup.OpenRC {
			mode = 0o755
		}
		err = r.files.Replace(r.Service.File, unit, mode, -1)
	}
	if err == nil && r.Rotation != "" {
		err = r.files.Replace(r.Rotation, []byte(strings.ReplaceAll(rotation, "/var/log/karve.log", r.Service.Log)), 0o644, -1)
		if !r.Lookup("logrotate") {
			r.Warn("%s grows until logrotate is installed", r.Service.Log)
		}
	}
	if err == nil && r.Lookup("restorecon") {
		_, _ = r.Service.Run(ctx, "restorecon", r.Program())
	}
	return err
}

// begin starts the service, and waits until it is ready.
func (r *installation) begin(ctx context.Context) error {
	if r.Service.Init == setup.None {
		return nil
	}
	if err := r.Service.Start(ctx); err != nil {
		return fmt.Errorf("the service could not be started: %w", err)
	}
	err := setup.Wait(ctx, "the service", r.Timeout, r.Say,
		func() bool { return r.ready(ctx) }, func() bool { return r.Service.Hopeless(ctx) })
	if err == nil {
		return nil
	}
	if r.unready != nil {
		err = fmt.Errorf("%w (%w)", err, r.unready)
	}
	for _, l := range r.Service.LogLines(context.WithoutCancel(ctx)) {
		r.Warn("  | %s", l)
	}
	return err
}

// ready reports whether the server is ready, as the init system and `karve status` know it: a server that has said
// that it is may be blocked.
func (r *installation) ready(ctx context.Context) bool {
	r.unready = nil
	if !r.Service.Active(ctx) {
		return false
	}
	r.unready = r.Ready(ctx, r.config.dataDir)
	return r.unready == nil
}

// restart starts the version again that was stopped, after a failure before anything was replaced.
func (r *installation) restart(ctx context.Context, cause error) error {
	if !r.running {
		return fmt.Errorf("%w; nothing was changed", cause)
	}
	if err := r.begin(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("%w; the installed version was started again, but is not ready: %w", cause, err)
	}
	return fmt.Errorf("%w; the installed version still runs", cause)
}

// rollBack undoes the installation, even if the user has interrupted it.
func (r *installation) rollBack(ctx context.Context, cause error) error {
	ctx = context.WithoutCancel(ctx)
	r.Warn("%s is given up: %v", r.Version, cause)
	if err := r.Service.Stop(ctx); err != nil {
		r.Warn("%v", err)
	}
	if r.fresh {
		setup.Forget(r.Place.files()...)
		kept := ""
		if r.backup.file != "" {
			kept = ". The backup of the data is " + r.backup.file
		}
		return fmt.Errorf("there is no earlier version to return to: the new one is stopped, but stays installed. Run karve install again with other options, or %s%s", r.Uninstall, kept)
	}
	if err := r.files.PutBack(); err != nil {
		return fmt.Errorf("the earlier version could not be restored: %w", err)
	}
	r.backup.putBack(ctx, r.Installer, r.Config)
	for _, dir := range r.config.directories() {
		if err := r.own(dir, r.owner); err != nil {
			r.Warn("%v", err)
		}
	}
	if !r.running {
		return errors.New("the earlier version is restored, and stopped as it was")
	}
	if old, err := readConfig(r.Config, r.DataDir); err == nil {
		r.config = old
	}
	if err := r.begin(ctx); err != nil {
		return fmt.Errorf("the earlier version is restored, but is not ready either: %w", err)
	}
	return errors.New("the earlier version is restored, and ready")
}

func (r *installation) whatNext(ctx context.Context) {
	if err := r.linkKubectl(); err != nil {
		r.Warn("kubectl: %v", err)
	}
	r.Say("%s is installed", r.Version)
	if r.Service.Init == setup.None {
		r.Say("this machine has neither systemd nor OpenRC. To run it: %s server --config %s", r.Program(), r.Config)
		if runs(r.config.dataDir) {
			r.Say("a server that runs is still the old version: stop and start it")
		}
	} else {
		r.Say("it is ready, with the options in %s", r.Config)
	}
	if r.User && r.Service.Init == setup.Systemd {
		if _, err := r.Service.Run(ctx, "loginctl", "enable-linger"); err != nil {
			r.Warn("the service ends when you log out, unless root runs: loginctl enable-linger %s", os.Getenv("USER"))
		}
	}
	karve := "karve"
	if !r.inPath() {
		r.Say("%s is not in your PATH", r.BinDir)
		karve = r.Program()
	}
	if !r.User && r.config.dataDir == "/var/lib/karve" {
		r.Say("next, as root: %s kubectl get namespaces", karve)
	} else {
		r.Say("next: KUBECONFIG=%s %s kubectl get namespaces", filepath.Join(r.config.dataDir, "admin.kubeconfig"), karve)
	}
	r.Say("to remove it: %s", r.Uninstall)
}

// sameFile compares the content of two files.
func sameFile(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	if errA != nil || errB != nil || infoA.Size() != infoB.Size() {
		return false
	}
	if os.SameFile(infoA, infoB) {
		return true
	}
	fileA, errA := os.Open(a)
	fileB, errB := os.Open(b)
	if errA != nil || errB != nil {
		return false
	}
	defer fileA.Close()
	defer fileB.Close()
	one, other := make([]byte, 1<<20), make([]byte, 1<<20)
	for {
		n, errA := io.ReadFull(fileA, one)
		m, errB := io.ReadFull(fileB, other)
		if !bytes.Equal(one[:n], other[:m]) {
			return false
		}
		if errA != nil || errB != nil {
			return slices.Contains([]error{io.EOF, io.ErrUnexpectedEOF}, errA) && errB == errA
		}
	}
}

// isFile reports whether a file has this content.
func isFile(path string, content []byte) bool {
	got, err := os.ReadFile(path)
	return err == nil && bytes.Equal(got, content)
}
