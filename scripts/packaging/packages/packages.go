// Package packages makes packages of Debian and of RPM, with nfpm. The same input gives the same
// bytes.
package packages

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"

	"github.com/karve-k8s/karve/scripts/packaging/image"
	"github.com/karve-k8s/karve/scripts/packaging/share"
)

//go:embed common.sh deb.* rpm.* copyright
var sources embed.FS

// formats are the packages that are made of the program of a platform, and their architectures in
// nfpm's words. armhf is one architecture of two kinds: Raspberry Pi OS runs it on armv6 too, so it
// gets the program that both run. No distribution with RPM runs on armv6.
var formats = map[string]map[string]string{
	"linux/amd64":   {"deb": "amd64", "rpm": "amd64"},
	"linux/arm64":   {"deb": "arm64", "rpm": "arm64"},
	"linux/armv6":   {"deb": "arm6"},
	"linux/armv7":   {"rpm": "arm7"},
	"linux/riscv64": {"deb": "riscv64", "rpm": "riscv64"},
}

// Version is a version as both kinds of packages compare it. A build before a release sorts before
// it, by the tilde: 1.37.2+karve.1~dev.0a1b2c3.
func Version(version string) string {
	v := strings.TrimPrefix(version, "v")
	if release, build, ok := strings.Cut(v, ".dev"); ok {
		v = release + "~dev" + build
	}
	return strings.ReplaceAll(v, "-", ".") // a dash begins the revision of a package
}

// Write writes the packages of all programs to a directory. Host is a karve that runs on this machine,
// which prints the manual pages and completions, and installer is install.sh.
func Write(dir string, release image.Release, host, installer string, programs []image.Program) error {
	work, err := os.MkdirTemp("", "packages-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	common, err := commonContents(work, release, host, installer)
	if err != nil {
		return err
	}
	for _, p := range programs {
		kinds, ok := formats[p.Platform]
		if !ok {
			return fmt.Errorf("%s: no package is made for this platform", p.Platform)
		}
		for kind, arch := range kinds {
			if err := write(dir, work, kind, arch, release, installer, p, common); err != nil {
				return fmt.Errorf("%s of %s: %w", kind, p.Path, err)
			}
		}
	}
	return nil
}

func write(dir, work, kind, arch string, release image.Release, installer string, p image.Program, common files.Contents) (err error) {
	packager, err := nfpm.Get(kind)
	if err != nil {
		return err
	}
	contents := files.Contents{file(p.Path, "/usr/bin/karve", 0o755)}
	for _, c := range common {
		if c.Packager == "" || c.Packager == kind {
			own := *c // nfpm changes it
			contents = append(contents, &own)
		}
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name:          "karve",
		Arch:          arch,
		Platform:      "linux",
		Version:       Version(release.Version),
		VersionSchema: "none",
		Section:       "admin",
		Priority:      "optional",
		Maintainer:    "Karve <https://github.com/karve-k8s/karve>",
		Description:   "Kubernetes control plane in one process\nUpstream's API server, controllers and scheduler in a static binary, on an\nSQLite file instead of etcd.",
		Homepage:      "https://github.com/karve-k8s/karve",
		License:       "Apache-2.0",
		MTime:         release.Time,
		// Programs may have any name; no pattern is meant.
		DisableGlobbing: true,
		Overridables: nfpm.Overridables{
			Contents: contents,
			Umask:    0o022,
			Deb:      nfpm.Deb{Compression: "zstd"},
			RPM: nfpm.RPM{
				Compression: "zstd",
				Summary:     "Kubernetes control plane in one process",
				BuildHost:   "localhost", // else this machine's name is in the package
			},
		},
	})
	switch kind {
	case "deb":
		info.Depends = []string{"init-system-helpers (>= 1.54~)", "passwd"}
		info.Recommends = []string{"systemd"}
		info.Scripts.PreInstall, info.Scripts.PostInstall = "deb.preinst", "deb.postinst"
		info.Scripts.PreRemove, info.Scripts.PostRemove = "deb.prerm", "deb.postrm"
	case "rpm":
		info.Depends = []string{"/bin/sh", "shadow-utils", "systemd"}
		info.Scripts.PreInstall, info.Scripts.PostInstall = "rpm.pre", "rpm.post"
		info.Scripts.PreRemove, info.Scripts.PostRemove = "rpm.preun", "rpm.postun"
	}
	for _, name := range []*string{&info.Scripts.PreInstall, &info.Scripts.PostInstall, &info.Scripts.PreRemove, &info.Scripts.PostRemove} {
		if *name, err = script(work, *name, release.Version, installer); err != nil {
			return err
		}
	}
	if err := nfpm.PrepareForPackager(info, kind); err != nil {
		return err
	}
	out, err := os.Create(filepath.Join(dir, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	return errors.Join(packager.Package(info, out), out.Close())
}

// script writes a script of a package: what all have in common, and its own part.
func script(work, name, version, installer string) (string, error) {
	option, errOption := function(installer, "option")
	place, errPlace := function(installer, "datastore_dir")
	common, errCommon := sources.ReadFile("common.sh")
	own, errOwn := sources.ReadFile(name)
	if err := errors.Join(errOption, errPlace, errCommon, errOwn); err != nil {
		return "", err
	}
	path := filepath.Join(work, name)
	text := fmt.Sprintf("#!/bin/sh\nset -eu\nnew='%s'\n%s\n# option NAME FILE prints a value in a configuration file.\n%s\n# datastore_dir ENDPOINT DATA_DIR prints the directory of the built-in datastore.\n%s\n%s", version, common, option, place, own)
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// function returns a function of install.sh, so that its rules are in one place.
func function(installer, name string) (string, error) {
	text, err := os.ReadFile(installer)
	if err != nil {
		return "", err
	}
	_, rest, found := strings.Cut(string(text), "\n"+name+"() {\n")
	body, _, ends := strings.Cut(rest, "\n}\n")
	if !found || !ends {
		return "", fmt.Errorf("%s has no function %s", installer, name)
	}
	return name + "() {\n" + body + "\n}\n", nil
}

// replacements are what the unit of the packages has in place of install.sh's. A removal with dpkg leaves the
// service enabled, so a script that fails does not keep it from starting at the next boot: the assertion does.
var replacements = []struct{ old, new string }{
	{"ExecStart=/usr/local/bin/karve ", "ExecStart=/usr/bin/karve "},
	{"[Unit]\n", "[Unit]\n# Data of another version have no backup yet: dpkg --configure karve, or dnf reinstall karve, makes it.\nAssertPathExists=!/etc/karve/backup-before-start\n"},
}

// commonContents makes the files that do not depend on the processor.
func commonContents(work string, release image.Release, host, installer string) (files.Contents, error) {
	var all files.Contents
	add := func(text []byte, only, path string) error {
		c := file(filepath.Join(work, fmt.Sprintf("content-%d", len(all))), path, 0o644)
		c.Packager = only
		all = append(all, c)
		return os.WriteFile(c.Source, text, 0o600)
	}
	unit, err := exec.Command("sh", installer, "unit").Output()
	if err != nil {
		return nil, fmt.Errorf("%s unit: %w", installer, err)
	}
	text := string(unit)
	for _, r := range replacements {
		if strings.Count(text, r.old) != 1 {
			return nil, fmt.Errorf("%s unit has not one %q", installer, r.old)
		}
		text = strings.Replace(text, r.old, r.new, 1)
	}
	if err := add([]byte(text), "", "/usr/lib/systemd/system/karve.service"); err != nil {
		return nil, err
	}
	shared, err := share.Files(release, host, filepath.Join(filepath.Dir(installer), "LICENSE"))
	if err != nil {
		return nil, err
	}
	for _, f := range shared {
		text, path, only := f.Text, "/usr/share/"+f.Path, ""
		switch {
		case f.IsManual():
			path += ".gz"
			if text, err = share.Gzip(text); err != nil {
				return nil, err
			}
		case f.Path == share.License:
			only = "rpm" // Debian has the licence, and packages name it in the file copyright
		case f.Path == share.Zsh:
			if err := add(text, "deb", "/usr/share/zsh/vendor-completions/_karve"); err != nil {
				return nil, err
			}
			only = "rpm"
		}
		if err := add(text, only, path); err != nil {
			return nil, err
		}
	}
	copyright, err := sources.ReadFile("copyright")
	if err == nil {
		err = add(copyright, "deb", "/usr/share/doc/karve/copyright")
	}
	return all, err
}

func file(source, destination string, mode os.FileMode) *files.Content {
	return &files.Content{Source: source, Destination: destination, FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode}}
}
