// Package install installs Karve as a service, upgrades it and removes it.
//
// DESIGN.md has the decisions. install.go tells an installation, and uninstall.go a removal; units.go has what the
// init system reads, options.go what a user gives, config.go the configuration file, data.go the backup.
package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/setup"
)

// Place says where everything of an installation is.
type Place struct {
	User      bool // it is a user's, and not the machine's
	BinDir    string
	Config    string // the configuration file
	DataDir   string // if the configuration names no other
	Rotation  string // the configuration of logrotate; OpenRC's log needs it
	Lookup    func(program string) bool
	Service   setup.Service
	Uninstall string // the script by which users know `karve uninstall`
}

// FindPlace finds it for the user that runs this process.
func FindPlace(ctx context.Context) (Place, error) {
	p := Place{
		BinDir: "/usr/local/bin", Config: "/etc/karve/config.yaml", DataDir: "/var/lib/karve", Lookup: setup.Has,
		Service: setup.Service{Name: "karve", Run: setup.Run},
	}
	if os.Geteuid() != 0 {
		home, err := os.UserHomeDir()
		if err != nil {
			return p, err
		}
		dir := func(variable, usual string) string {
			if d := os.Getenv(variable); filepath.IsAbs(d) {
				return d
			}
			return filepath.Join(home, usual)
		}
		config := dir("XDG_CONFIG_HOME", ".config")
		p.User, p.BinDir = true, filepath.Join(home, ".local/bin")
		p.Config = filepath.Join(config, "karve/config.yaml")
		p.DataDir = filepath.Join(dir("XDG_DATA_HOME", ".local/share"), "karve")
		p.Service.User, p.Service.File = true, filepath.Join(config, "systemd/user/karve.service")
	}
	p.Uninstall = filepath.Join(p.BinDir, "karve-uninstall.sh")
	var err error
	switch p.Service.Init, err = setup.FindInit(ctx, p.User, setup.Run); {
	case p.Service.Init == setup.OpenRC:
		p.Service.File, p.Service.Log, p.Rotation = "/etc/init.d/karve", "/var/log/karve.log", "/etc/logrotate.d/karve"
	case !p.User:
		p.Service.File = "/etc/systemd/system/karve.service"
	}
	if err == nil && p.Service.Init == setup.None && setup.Exists(p.Service.File) {
		err = fmt.Errorf("%s is installed, but no systemd runs here: run this where it does, or remove the file", p.Service.File)
	}
	if err != nil {
		return p, fmt.Errorf("%w; nothing was changed", err)
	}
	return p, nil
}

// Program is the installed program.
func (p *Place) Program() string { return filepath.Join(p.BinDir, "karve") }

// files are all that an installation replaces; config is the configuration file itself, to which a link may lead.
func (p *Place) files(config string) []string {
	all := []string{p.Program(), config, p.Uninstall}
	if p.Service.Init != setup.None {
		all = append(all, p.Service.File)
	}
	if p.Rotation != "" {
		all = append(all, p.Rotation)
	}
	return all
}

// claim refuses what is not Karve's, or could not be written into a unit.
func (p *Place) claim(files *setup.Files, config string) error {
	for _, path := range []string{p.Program(), p.Config} {
		if !plain.MatchString(path) {
			return fmt.Errorf("%s: a service needs paths of letters, digits and ._@+-: HOME or XDG_CONFIG_HOME has others", path)
		}
	}
	for _, path := range p.files(config) {
		if err := files.Claim(path, path == config); err != nil {
			return err
		}
	}
	return nil
}

// Installed reports whether there is an installation that can be upgraded. The program is missing if an upgrade
// failed in an unusual way.
func (p *Place) Installed() error {
	for _, file := range []string{p.Program(), p.Config} {
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("no installed Karve is here (%w): run `karve install`", err)
		}
	}
	return nil
}

// notPackaged fails if a package has installed Karve: that has a service of its own, with the same data.
func (p *Place) notPackaged(ctx context.Context) error {
	if p.User {
		return nil
	}
	remover := ""
	if status, err := p.Service.Run(ctx, "dpkg-query", "-W", "-f", "${db:Status-Status}", "karve"); err == nil && status != "" && status != "not-installed" && status != "config-files" {
		remover = "apt remove karve"
	} else if _, err := p.Service.Run(ctx, "rpm", "-q", "karve"); err == nil {
		remover = "dnf remove karve"
	}
	if remover == "" {
		return nil
	}
	return fmt.Errorf("the package karve is installed here. Upgrade it with a newer package, or remove it (%s) and run this again: it goes on with the data and the configuration", remover)
}

// NotPackaged fails if a package has installed Karve for the machine.
func NotPackaged(ctx context.Context) error {
	return (&Place{Service: setup.Service{Run: setup.Run}}).notPackaged(ctx)
}

// lostFound is in a directory that is a file system of its own.
const lostFound = "lost+found"

func isEmpty(dir string) bool {
	entries, err := os.ReadDir(dir)
	return (err == nil || os.IsNotExist(err)) && !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() != lostFound })
}

// real is a path without symbolic links: the directory may be on another disk.
func real(dir string) string {
	if path, err := filepath.EvalSymlinks(dir); err == nil {
		return path
	}
	return dir
}

// linkKubectl makes kubectl another name of karve, if there is none.
func (p *Place) linkKubectl() error {
	if p.Lookup("kubectl") {
		return nil
	}
	err := os.Symlink("karve", filepath.Join(p.BinDir, "kubectl"))
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}

func (p *Place) unlinkKubectl() {
	link := filepath.Join(p.BinDir, "kubectl")
	if to, err := os.Readlink(link); err == nil && to == "karve" {
		os.Remove(link)
	}
}

// inPath reports whether users find the program without its directory.
func (p *Place) inPath() bool {
	return strings.Contains(string(filepath.ListSeparator)+os.Getenv("PATH")+string(filepath.ListSeparator), string(filepath.ListSeparator)+p.BinDir+string(filepath.ListSeparator))
}

// inUse returns an error that names the server that uses the data.
func (c *config) inUse() error {
	for _, dir := range c.directories() {
		if pid, held, err := directory.Holder(dir); err != nil {
			return err
		} else if held {
			return fmt.Errorf("%w: %s, by process %d: stop it first", directory.ErrLocked, dir, pid)
		}
	}
	return nil
}
