package install

import (
	_ "embed"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/karve-k8s/karve/internal/setup"
)

// The files for the init system, as they are for an installation without options by root.
var (
	//go:embed karve.service
	systemdUnit string
	//go:embed karve.openrc
	openrcScript string
	//go:embed karve.logrotate
	rotation string
)

// bindLow lets supervise-daemon give the server ports below 1024.
const bindLow = "^cap_net_bind_service"

// UserUnit is the unit of a user's systemd.
func UserUnit(program, config string) string {
	text := withLine(systemdUnit, "ExecStart", program+" server --config "+config)
	for _, name := range []string{"Wants", "After", "RequiresMountsFor"} {
		text = withoutLine(text, name)
	}
	text = strings.Replace(text, "# On a disk of its own that is not mounted yet, a start would find no data and begin a new cluster.\n", "", 1)
	head, _, _ := strings.Cut(text, "User=karve\n") // from there on it is what only root's systemd can do
	return head + "\n[Install]\nWantedBy=default.target\n"
}

// SystemUnit is the unit of an installation by root without options.
func SystemUnit() string { return systemdUnit }

// unit is what the init system reads.
func (i *Installer) unit(c *config) string {
	program := i.Program() + " server --config " + i.Config
	switch {
	case i.Service.Init == setup.OpenRC:
		text := strings.Replace(openrcScript, "/usr/local/bin/karve", i.Program(), 1)
		text = strings.Replace(text, "/etc/karve/config.yaml", i.Config, 1)
		if c.lowPort() {
			text = strings.Replace(text, "\n\ndepend()", "\ncapabilities=\""+bindLow+"\"\n\ndepend()", 1)
		}
		return strings.ReplaceAll(text, "/var/log/karve.log", i.Service.Log)
	case i.User:
		return UserUnit(i.Program(), i.Config)
	}
	text := withLine(systemdUnit, "ExecStart", program)
	dirs := c.directories()
	text = withLine(text, "RequiresMountsFor", strings.Join(dirs, " "))
	writable := "-" + strings.Join(dirs, " -")
	for _, dir := range []string{filepath.Dir(c.option("write-kubeconfig")), c.option("backup-dir"), filepath.Dir(c.option("audit-log-path"))} {
		if len(dir) > 1 && plain.MatchString(dir+"/x") {
			writable += " -" + dir
		}
	}
	text = withLine(text, "ReadWritePaths", writable)
	if c.lowPort() {
		text = withLine(text, "CapabilityBoundingSet", "CAP_NET_BIND_SERVICE\nAmbientCapabilities=CAP_NET_BIND_SERVICE")
	}
	return text
}

func line(name string) *regexp.Regexp { return regexp.MustCompile(`(?m)^` + name + `=.*\n`) }

func withLine(unit, name, value string) string {
	return line(name).ReplaceAllLiteralString(unit, name+"="+value+"\n")
}

func withoutLine(unit, name string) string { return line(name).ReplaceAllLiteralString(unit, "") }
