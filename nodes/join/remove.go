package join

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/karve-k8s/karve/internal/setup"
	"github.com/karve-k8s/karve/nodes/join/sshkeys"
)

// Remove undoes Join. It ends the Pods of this machine, and leaves all other containers alone.
func Remove(ctx context.Context, m *Machine, say func(string, ...any)) error {
	if err := m.supported(); err != nil {
		return err
	}
	r, err := m.readRecord()
	if err != nil {
		return err
	}
	if r == nil {
		return errNoNode
	}
	return m.undo(ctx, r, say)
}

// undo undoes the steps of a join, the last one first. It ends at the first failure, and keeps the record, so that it
// goes on there when it is tried again.
func (m *Machine) undo(ctx context.Context, r *record, say func(string, ...any)) error {
	for _, s := range slices.Backward(steps) {
		if s.undo != nil {
			if err := s.undo(m, ctx, r, say); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeKubelet ends the kubelet and its Pods, and removes what they had.
func (m *Machine) removeKubelet(ctx context.Context, r *record, _ func(string, ...any)) error {
	if err := m.stopService(ctx); err != nil {
		return fmt.Errorf("the kubelet could not be stopped: %w", err)
	}
	// In this order: containers hold mounts, and the network is taken down with a Pod. Without containerd, nothing knows its Pods.
	if r.Runtime != "" && m.has("containerd") {
		if err := m.endPods(ctx); err != nil {
			return err
		}
	}
	if err := m.unmount(ctx, kubeletDir); err != nil {
		return err
	}
	var wrong []error
	for _, dir := range []string{kubeletDir, libDir, "/var/log/pods", "/var/log/containers", "/var/lib/cni/networks/karve"} {
		wrong = append(wrong, m.removeDir(dir))
	}
	// The kubelet makes it, empty, for plugins of volumes that an administrator may put there.
	for dir := "/usr/libexec/kubernetes/kubelet-plugins/volume/exec"; dir != "/usr/libexec"; dir = filepath.Dir(dir) {
		_ = os.Remove(m.path(dir))
	}
	if m.exists("/sys/class/net/" + bridge) {
		_, err := m.run(ctx, "ip", "link", "delete", bridge)
		wrong = append(wrong, err)
	}
	_, _ = m.run(ctx, "systemctl", "stop", "kubepods.slice") // the empty control groups that a kubelet leaves; without systemd's driver, there are none
	return errors.Join(wrong...)
}

// withdraw takes the server's keys away. If the user is gone, the keys went along.
func (m *Machine) withdraw(ctx context.Context, r *record, _ func(string, ...any)) error {
	if r.SSH == nil || len(r.SSH.Lines) == 0 {
		return nil
	}
	account, err := sshkeys.Find(r.SSH.User)
	if errors.Is(err, sshkeys.ErrNoUser) {
		return nil
	} else if err == nil {
		err = account.Remove(ctx, r.SSH.Lines)
	}
	if err != nil {
		return fmt.Errorf("the server's key could not be taken away: %w: repair that, and try again", err)
	}
	return nil
}

// removeFiles puts files back as they were, and lets services read what they have now.
func (m *Machine) removeFiles(ctx context.Context, r *record, _ func(string, ...any)) error {
	hadService := m.exists(kubeletUnit)
	configured := slices.Contains(r.Files, containerdConfig) && m.exists(containerdConfig)
	wrong := []error{m.takeBack(r), removeIfThere(m.path(kubeconfigFile))}
	if hadService {
		_, err := m.run(ctx, "systemctl", "daemon-reload")
		wrong = append(wrong, err)
	}
	if configured && m.has("containerd") {
		wrong = append(wrong, m.restart(ctx, "containerd")) // with its own configuration
	}
	for _, dir := range []string{"/etc/cni/net.d", "/etc/cni", "/etc/containerd"} {
		_ = os.Remove(m.path(dir)) // unless something is in it
	}
	return errors.Join(wrong...)
}

// removeRecord ends a removal.
func (m *Machine) removeRecord(_ context.Context, r *record, say func(string, ...any)) error {
	m.sweep(0)
	if err := os.RemoveAll(m.path(configDir)); err != nil {
		return err
	}
	m.sayPackages(r, say)
	return nil
}

// lostFound is in the root of a file system, which is its own.
const lostFound = "lost+found"

// removeDir removes a directory with everything in it. If it is a file system of its own, or a
// link to another directory, it stays and is empty afterwards.
func (m *Machine) removeDir(dir string) error {
	entries, err := os.ReadDir(m.path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	var wrong []error
	for _, e := range entries {
		if e.Name() != lostFound {
			wrong = append(wrong, os.RemoveAll(filepath.Join(m.path(dir), e.Name())))
		}
	}
	if info, err := os.Lstat(m.path(dir)); err == nil && info.IsDir() {
		_ = os.Remove(m.path(dir))
	}
	return errors.Join(wrong...)
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// unmount unmounts the volumes of Pods. A directory is only removed when nothing is mounted in it:
// the files in a volume are not the node's.
func (m *Machine) unmount(ctx context.Context, dir string) error {
	// The kernel has mounts under their own paths, and the directory may be a link to another disk.
	if real, err := filepath.EvalSymlinks(m.path(dir)); err == nil {
		dir = filepath.Join("/", strings.TrimPrefix(real, m.path("/")))
	}
	for range 3 {
		mounts := setup.MountsBelow(m.read(setup.MountTable), dir)
		if len(mounts) == 0 {
			return nil
		}
		for _, mount := range slices.Backward(mounts) {
			if _, err := m.run(ctx, "umount", mount); err != nil {
				return fmt.Errorf("%s is in use, so that %s cannot be removed: %w", mount, dir, err)
			}
		}
	}
	return fmt.Errorf("something is still mounted in %s: unmount it, and try again", dir)
}

// sayPackages says how to remove the packages that the join installed. They stay, because only the administrator knows
// whether something else uses them.
func (m *Machine) sayPackages(r *record, say func(string, ...any)) {
	missing, _ := m.missingPackages() // somebody may have removed them, or the join failed before apt ended
	stay := slices.DeleteFunc(slices.Clone(r.Packages), func(name string) bool { return slices.Contains(missing, name) })
	if len(stay) == 0 {
		return
	}
	images := ""
	if slices.Contains(stay, "containerd") {
		images = ", and images in " + containerdData
	}
	say("packages that the join installed stay%s. If nothing else uses them: apt-get purge --autoremove %s", images, strings.Join(stay, " "))
}
