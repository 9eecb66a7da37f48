package join

import (
	"context"
	"fmt"
	"os"
	"strings"
)

const (
	systemdUnit  = "/etc/systemd/system/karve-node.service"
	openrcScript = "/etc/init.d/karve-node"
	openrcLog    = "/var/log/karve-node.log"

	// followService runs Follow beside the kubelet, and once an hour.
	followService = "karve-node-network"
	followUnit    = "/etc/systemd/system/" + followService + ".service"
	followPID     = "/run/" + followService + ".pid" // of OpenRC
)

// init is the init system that runs services here, or empty.
func (m *Machine) init() string {
	switch {
	case m.exists("/run/systemd/system") && m.has("systemctl"):
		return "systemd"
	case m.has("openrc-run") && m.has("rc-service"):
		return "openrc"
	}
	return ""
}

// serviceFile is the unit, or the script. Stopping or restarting the service never ends Pods: only
// the kubelet itself gets a signal, and containers are not its children.
func (m *Machine) serviceFile(o Options) file {
	command := kubeletCommand(o)
	if m.init() == "openrc" {
		return file{openrcScript, fmt.Sprintf(`#!/sbin/openrc-run
# Written by karve node join.
description="kubelet: runs the Pods of a cluster on this machine"
supervisor=supervise-daemon
command=%s
command_args=%q
respawn_delay=5
respawn_max=0
rc_ulimit="-n 1048576"
output_log=%s
error_log=%s

depend() {
	use localmount
	want net containerd
	after firewall containerd
}

start_pre() {
	sysctl -q -p %s
	checkpath -f -m 0600 %s
}

# Beside the kubelet: Pods get addresses of the Node's range, and the kubelet the cluster's authorities.
start_post() {
	start-stop-daemon --start --background --make-pidfile --pidfile %[7]s --exec /bin/sh -- -c 'while :; do "$0" node follow; sleep 3600; done' %[8]q || :
}

stop_post() {
	start-stop-daemon --stop --quiet --pidfile %[7]s || :
	rm -f %[7]s
}
`, command[0], strings.Join(command[1:], " "), openrcLog, openrcLog, sysctlFile, openrcLog, followPID, m.program()), 0o755}
	}
	return file{systemdUnit, fmt.Sprintf(`# Written by karve node join.
[Unit]
Description=kubelet: runs the Pods of a cluster on this machine
Documentation=https://github.com/karve-k8s/karve
Wants=network-online.target containerd.service `+followService+`.service
After=network-online.target containerd.service
# Restart it however often it fails: nobody may be there to start it by hand.
StartLimitIntervalSec=0

[Service]
ExecStart=%s
Restart=always
RestartSec=5
# Pods keep running while the kubelet is stopped or replaced.
KillMode=process
Delegate=yes
LimitNOFILE=1048576
UMask=0027

[Install]
WantedBy=multi-user.target
`, strings.Join(command, " ")), 0o644}
}

// followFile is the unit that runs Follow. The kubelet's unit starts it, and does not wait for it.
func (m *Machine) followFile() file {
	return file{followUnit, fmt.Sprintf(`# Written by karve node join.
[Unit]
Description=Pods have addresses of their Node's range, and the kubelet has the cluster's authorities
Documentation=https://github.com/karve-k8s/karve
# A kubelet that is restarted may register its Node again.
PartOf=karve-node.service
StartLimitIntervalSec=0

[Service]
ExecStart=%q node follow
# It ends when there is nothing to do, and looks again in an hour.
Restart=always
RestartSec=1h
`, m.program()), 0o644}
}

// program is the karve that services start.
func (m *Machine) program() string {
	if m.Program != "" {
		return m.Program
	}
	if file, err := os.Executable(); err == nil {
		return file
	}
	return ProgramFile
}

func (m *Machine) startService(ctx context.Context) error {
	if m.init() == "openrc" {
		if _, err := m.run(ctx, "rc-update", "-q", "add", "karve-node", "default"); err != nil {
			return err
		}
		_, err := m.run(ctx, "rc-service", "karve-node", "start")
		return err
	}
	if _, err := m.run(ctx, "systemctl", "daemon-reload"); err != nil {
		return err
	}
	_, err := m.run(ctx, "systemctl", "enable", "--quiet", "--now", "karve-node")
	return err
}

// stopService ends the kubelet, and that it starts with the machine.
func (m *Machine) stopService(ctx context.Context) error {
	switch {
	case m.exists(openrcScript):
		_, _ = m.run(ctx, "rc-update", "-q", "del", "karve-node", "default")
		_, err := m.run(ctx, "rc-service", "karve-node", "--ifstarted", "stop")
		return err
	case m.exists(systemdUnit):
		_, err := m.run(ctx, "systemctl", "disable", "--quiet", "--now", "karve-node")
		return err
	}
	return nil
}

func (m *Machine) restart(ctx context.Context, service string) error {
	return m.control(ctx, "restart", service)
}
func (m *Machine) start(ctx context.Context, service string) error {
	return m.control(ctx, "start", service)
}

func (m *Machine) control(ctx context.Context, verb, service string) (err error) {
	if m.init() == "openrc" {
		_, err = m.run(ctx, "rc-service", service, verb)
	} else {
		_, err = m.run(ctx, "systemctl", verb, service)
	}
	return err
}

// logHint is the end of the kubelet's log, as its reason to fail is there.
func (m *Machine) logHint(ctx context.Context) string {
	var text string
	if m.init() == "openrc" {
		b, _ := os.ReadFile(m.path(openrcLog))
		text = string(b)
	} else {
		text, _ = m.run(ctx, "journalctl", "-u", "karve-node", "-n", "200", "--no-pager", "-o", "cat")
	}
	// klog marks errors with E and fatal ones with F or a line of its own at the end.
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if strings.HasPrefix(lines[i], "E") || strings.HasPrefix(lines[i], "F") || strings.Contains(lines[i], "failed") {
			return "The kubelet's log says: " + strings.TrimSpace(lines[i])
		}
	}
	return "The kubelet's log has no error"
}
