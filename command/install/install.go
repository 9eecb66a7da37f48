package install

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/karve-k8s/karve/internal/setup"
)

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
	files      *setup.Files
	configFile string // to which Config may be a link
	config     *config
	staged     string // the program, beside the installed one
	temp       string // the new configuration, beside the one in use
	owner      owner
	undo       []func() // what a refusal takes back, last first
	backup     backup
	fresh      bool // there is no earlier version to return to
	running    bool // the service ran before
	unready    error
}

// Run installs the program with these options, or upgrades what is installed. If the new version does not become
// ready, the earlier one returns, with its options and its data. It returns the data directory.
func (i *Installer) Run(ctx context.Context, given Options) (dataDir string, err error) {
	files, err := setup.Begin(i.BinDir)
	if err != nil {
		return "", err
	}
	defer files.End()
	r := &installation{Installer: i, files: files}
	r.fresh = !files.Interrupted(i.Program()) && (!setup.Exists(i.Program()) || files.Made(i.Program()))
	if err := r.run(ctx, given); err != nil {
		return "", err
	}
	return r.config.dataDir, nil
}

func (r *installation) run(ctx context.Context, given Options) error {
	err := r.prepareAll(ctx, given)
	defer func() { os.Remove(r.staged); os.Remove(r.temp) }() // unless they got their names
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		for _, undo := range slices.Backward(r.undo) {
			undo()
		}
		if r.fresh {
			return fmt.Errorf("%w; nothing was installed", err)
		}
		return fmt.Errorf("%w; nothing was changed: the installed version is as it was", err)
	}
	unit := []byte(r.unit(r.config))
	same := sum(r.staged) == sum(r.Program())
	interrupted := r.files.Interrupted(r.Program())
	lasting := context.WithoutCancel(ctx) // what was stopped is started again
	r.running = r.Service.Running(lasting)
	if r.running && r.ready(lasting) {
		r.files.Forget() // an upgrade that was cut short has succeeded
		interrupted = false
		if same && isFile(r.configFile, r.config.text) && isFile(r.Service.File, unit) {
			r.Say("%s is installed already, with these options, and ready", r.Version)
			return nil
		}
	}
	if err = r.Service.Stop(lasting); err != nil {
		err = fmt.Errorf("the running version could not be stopped: %w", err)
	} else if err = context.Cause(ctx); err == nil {
		r.backup = backupOf(r.config)
		err = r.secure(ctx, same, interrupted)
	}
	if err != nil {
		return r.restart(ctx, err)
	}
	if err := r.switchOver(ctx, unit); err != nil {
		return r.rollBack(ctx, err)
	}
	if err := r.begin(ctx); err != nil {
		return r.rollBack(ctx, err)
	}
	r.files.Forget()
	if r.Service.Init != setup.None {
		if err := r.Service.Enable(ctx); err != nil {
			r.Warn("the service does not start with the machine: %v", err)
		}
	}
	r.whatNext(ctx)
	return nil
}

// secure makes the way back for the data.
func (r *installation) secure(ctx context.Context, same, interrupted bool) error {
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
		program = r.staged
	}
	return r.backUp(ctx, &r.backup, program, r.temp)
}

// switchOver puts everything in its place.
func (r *installation) switchOver(ctx context.Context, unit []byte) error {
	if err := r.files.ReplaceBy(r.Program(), r.staged); err != nil {
		return err
	}
	mode, gid := os.FileMode(0o640), r.owner.GID
	if r.User {
		mode, gid = 0o600, -1
	}
	script := "#!/bin/sh\n# Written by karve install.\nexec '" + strings.ReplaceAll(r.Program(), "'", `'\''`) + "' uninstall \"$@\"\n"
	err := r.files.Replace(r.configFile, r.config.text, mode, gid)
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
	return fmt.Errorf("%w; the installed version runs again", cause)
}

// rollBack undoes the installation, even if the user has interrupted it.
func (r *installation) rollBack(ctx context.Context, cause error) error {
	ctx = context.WithoutCancel(ctx)
	r.Warn("%s is given up: %v", r.Version, cause)
	if err := r.Service.Stop(ctx); err != nil {
		r.Warn("%v", err)
	}
	if r.fresh {
		r.files.Forget()
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
		if r.config.inUse() != nil {
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

// sum is the checksum of a file, and empty if there is none.
func sum(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return ""
	}
	return string(h.Sum(nil))
}

// isFile reports whether a file has this content.
func isFile(path string, content []byte) bool {
	got, err := os.ReadFile(path)
	return err == nil && bytes.Equal(got, content)
}
