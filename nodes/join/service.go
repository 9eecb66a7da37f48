package join

import (
	"context"
	"fmt"
	"os"
	"strings"
)

const (
	kubeletUnit = "/etc/systemd/system/karve-node.service"

	// followService runs Follow beside the kubelet, and once an hour.
	followService = "karve-node-network"
	followUnit    = "/etc/systemd/system/" + followService + ".service"
)

// serviceFile is the kubelet's unit. Stopping or restarting the service never ends Pods: only the kubelet itself gets a
// signal, and containers are not its children.
func serviceFile(o Options) file {
	return file{kubeletUnit, fmt.Sprintf(`# Written by karve node join.
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
`, strings.Join(kubeletCommand(o), " ")), 0o644}
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
	if _, err := m.run(ctx, "systemctl", "daemon-reload"); err != nil {
		return err
	}
	_, err := m.run(ctx, "systemctl", "enable", "--quiet", "--now", "karve-node")
	return err
}

// stopService ends the kubelet, and that it starts with the machine.
func (m *Machine) stopService(ctx context.Context) error {
	if !m.exists(kubeletUnit) {
		return nil
	}
	_, err := m.run(ctx, "systemctl", "disable", "--quiet", "--now", "karve-node")
	return err
}

func (m *Machine) restart(ctx context.Context, service string) error {
	_, err := m.run(ctx, "systemctl", "restart", service)
	return err
}

// logHint is the end of the kubelet's log, as its reason to fail is there.
func (m *Machine) logHint(ctx context.Context) string {
	text, _ := m.run(ctx, "journalctl", "-u", "karve-node", "-n", "200", "--no-pager", "-o", "cat")
	// klog marks errors with E and fatal ones with F or a line of its own at the end.
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if strings.HasPrefix(lines[i], "E") || strings.HasPrefix(lines[i], "F") || strings.Contains(lines[i], "failed") {
			return "The kubelet's log says: " + strings.TrimSpace(lines[i])
		}
	}
	return "The kubelet's log has no error"
}
