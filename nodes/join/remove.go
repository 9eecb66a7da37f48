package join

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
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
	return m.remove(ctx, r, say)
}

// remove does everything that it can, and keeps the record if something failed, so that it can be
// tried again.
func (m *Machine) remove(ctx context.Context, r *record, say func(string, ...any)) error {
	if err := m.stopService(ctx); err != nil {
		return fmt.Errorf("the kubelet could not be stopped: %w", err)
	}
	// In this order: containers hold mounts, and the network is taken down with a Pod.
	if err := m.endPods(ctx, r.Runtime); err != nil {
		return err
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
		wrong = append(wrong, m.removeEmpty(dir))
	}
	if m.exists("/sys/class/net/" + bridge) {
		_, err := m.run(ctx, "ip", "link", "delete", bridge)
		wrong = append(wrong, err)
	}
	hadService := m.exists(systemdUnit)
	if hadService {
		wrong = append(wrong, m.stopSlice(ctx))
	}
	configured := slices.Contains(r.Files, containerdConfig)
	if slices.Contains(r.Files, openrcScript) {
		wrong = append(wrong, removeIfThere(m.path(openrcLog)))
	}
	// Before the files, because a purge takes a package's configuration away, whoever wrote it.
	kept, err := m.removePackages(ctx, r)
	wrong = append(wrong, err)
	if len(kept) > 0 {
		say("these packages stay, because something else uses them: %s", strings.Join(kept, ", "))
	}
	wrong = append(wrong, m.takeBack(r), m.withdraw(ctx, r.SSH, say), removeIfThere(m.path(kubeconfigFile)))
	gone := err == nil && len(kept) == 0
	if gone && !m.has("containerd") { // another package may have brought it since
		for _, path := range r.Made {
			if path == containerdData {
				wrong = append(wrong, os.RemoveAll(m.path(path)))
			} else {
				wrong = append(wrong, m.removeEmpty(path)) // what somebody has put there since stays
			}
		}
	}
	if hadService {
		_, err := m.run(ctx, "systemctl", "daemon-reload")
		wrong = append(wrong, err)
	}
	if configured && !(gone && slices.Contains(r.Packages, "containerd")) && m.has("containerd") {
		wrong = append(wrong, m.restart(ctx, "containerd")) // with its own configuration
	}
	if err := errors.Join(wrong...); err != nil {
		return err
	}
	m.sweep(0)
	return os.RemoveAll(m.path(configDir))
}

// podSlice is the control group in which a kubelet makes those of its Pods. It leaves them all.
const podSlice = "kubepods.slice"

// stopSlice removes the control groups of Pods, which are empty. Without systemd's driver, there are none
// of that name.
func (m *Machine) stopSlice(ctx context.Context) error {
	for _, tree := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/systemd/"} { // of version 2, and 1
		if m.exists(tree + podSlice) {
			_, err := m.run(ctx, "systemctl", "stop", podSlice)
			return err
		}
	}
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
	if err := errors.Join(wrong...); err != nil {
		return err
	}
	if info, err := os.Lstat(m.path(dir)); err != nil || info.Mode()&fs.ModeSymlink != 0 {
		return err
	}
	if err := os.Remove(m.path(dir)); err != nil && !emptyDir(m.path(dir)) {
		return err
	}
	return nil
}

func emptyDir(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() != lostFound })
}

// removeEmpty removes a file, or a directory that is empty.
func (m *Machine) removeEmpty(path string) error {
	if err := removeIfThere(m.path(path)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// endPods asks containerd to stop and remove every Pod that a kubelet made. It knows which those
// are: containers of docker, and of containerd's other namespaces, are none. CNI takes down the
// network of each. Containers outlive a containerd that was stopped, so it is started for this.
func (m *Machine) endPods(ctx context.Context, socket string) error {
	if socket == "" {
		return nil // the join did not get as far as a Pod
	}
	if !m.has("containerd") && !m.listens(socket) {
		return nil // it was removed, and nothing else knows its Pods
	}
	if err := m.startContainerd(ctx, socket); err != nil {
		return fmt.Errorf("some Pods may still run, which only containerd can end: %w: repair it, and try again", err)
	}
	conn, err := m.dialCRI(socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	cri := runtimeapi.NewRuntimeServiceClient(conn)
	ctx, cancel := context.WithTimeout(ctx, longestGrace+3*time.Minute)
	defer cancel()
	stopContainers(ctx, cri)
	list, err := cri.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("containerd does not say which Pods run: %w: repair it, or end them yourself, and try again", err)
	}
	for _, pod := range list.Items {
		name := pod.Metadata.GetNamespace() + "/" + pod.Metadata.GetName()
		if _, err := cri.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod.Id}); err != nil {
			return fmt.Errorf("the Pod %s could not be stopped: %w", name, err)
		}
		if _, err := cri.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod.Id}); err != nil {
			return fmt.Errorf("the Pod %s could not be removed: %w", name, err)
		}
	}
	return nil
}

// gracePeriod is the annotation by which the kubelet remembers a Pod's terminationGracePeriodSeconds.
const gracePeriod = "io.kubernetes.pod.terminationGracePeriod"

// longestGrace is how long a container may take to end at most.
const longestGrace = 2 * time.Minute

// stopContainers ends all containers of Pods at the same time, each with the grace period of its
// Pod, as a kubelet does. Stopping a Pod as a whole kills what is left, so no error matters here.
func stopContainers(ctx context.Context, cri runtimeapi.RuntimeServiceClient) {
	list, err := cri.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return
	}
	var all sync.WaitGroup
	for _, container := range list.Containers {
		all.Go(func() {
			grace := int64(30) // Kubernetes' default
			if n, err := strconv.ParseInt(container.Annotations[gracePeriod], 10, 64); err == nil && n >= 0 {
				grace = min(n, int64(longestGrace/time.Second))
			}
			_, _ = cri.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: container.Id, Timeout: grace})
		})
	}
	all.Wait()
}

// unmount unmounts the volumes of Pods. A directory is only removed when nothing is mounted in it:
// the files in a volume are not the node's.
func (m *Machine) unmount(ctx context.Context, dir string) error {
	// The kernel has mounts under their own paths, and the directory may be a link to another disk.
	if real, err := filepath.EvalSymlinks(m.path(dir)); err == nil {
		dir = filepath.Join("/", strings.TrimPrefix(real, m.path("/")))
	}
	for range 3 {
		mounts := m.mountsBelow(dir)
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

func (m *Machine) mountsBelow(dir string) []string {
	var all []string
	for line := range strings.SplitSeq(m.read("/proc/self/mountinfo"), "\n") {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		point := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`).Replace(fields[4])
		if strings.HasPrefix(point, dir+"/") { // the directory itself may be a file system of its own
			all = append(all, point)
		}
	}
	return all
}

// removePackages removes those that were not there before, and returns those that something else
// uses now.
func (m *Machine) removePackages(ctx context.Context, r *record) (kept []string, err error) {
	if len(r.Packages) == 0 {
		return nil, nil
	}
	if slices.Contains(r.Packages, "containerd") {
		if others, err := m.otherContainers(ctx, r.Runtime); err != nil || others {
			return r.Packages, err
		}
	}
	// Some may not be there: a join may have failed before apt ended, or somebody removed them.
	status := m.packageStatus(ctx, r.Packages)
	var purge, remove []string
	for _, name := range r.Packages {
		switch state := status[name]; {
		case state == "", state == "not-installed":
		case !slices.Contains(r.Configured, name):
			purge = append(purge, name)
		case state != "config-files":
			remove = append(remove, name)
		}
	}
	for _, step := range []struct {
		verb     string
		packages []string
	}{{"remove", remove}, {"purge", purge}} {
		if len(step.packages) == 0 {
			continue
		}
		args := append(append([]string{step.verb}, aptOptions...), step.packages...)
		plan, err := m.run(ctx, "apt-get", append([]string{"-s"}, args...)...)
		if err != nil {
			return nil, err
		}
		for line := range strings.SplitSeq(plan, "\n") {
			fields := strings.Fields(line)
			if len(fields) > 1 && (fields[0] == "Remv" || fields[0] == "Purg") && !slices.Contains(r.Packages, fields[1]) {
				return r.Packages, nil // a package that was installed since needs them
			}
		}
		if slices.Contains(step.packages, "containerd") && m.exists(containerdConfig) {
			// If the join did not write it, it is somebody's, and comes back afterwards.
			if err := errors.Join(m.keep(r, containerdConfig), m.writeRecord(r)); err != nil {
				return nil, err
			}
		}
		// An interruption waits for dpkg.
		if _, err := m.run(context.WithoutCancel(ctx), "apt-get", args...); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// otherContainers tells whether somebody has put containers or images into another of
// containerd's namespaces. Those of Kubernetes have gone, or are the kubelet's.
func (m *Machine) otherContainers(ctx context.Context, socket string) (bool, error) {
	if !m.has("containerd") {
		return false, nil // it was never installed, or has gone
	}
	if socket == "" {
		if !m.exists(containerdData + "/io.containerd.metadata.v1.bolt") {
			return false, nil // it has never run
		}
		socket = "/run/containerd/containerd.sock"
	}
	unknown := func(err error) (bool, error) {
		return false, fmt.Errorf("containerd does not say whether somebody else has containers in it, so its package stays: %w: repair containerd, or remove its package, and try again", err)
	}
	if err := m.startContainerd(ctx, socket); err != nil {
		return unknown(err)
	}
	ctr := func(args ...string) (string, error) {
		return m.run(ctx, "ctr", append([]string{"--address", m.path(socket)}, args...)...)
	}
	names, err := ctr("namespaces", "list", "--quiet")
	if err != nil {
		return unknown(err)
	}
	for _, name := range strings.Fields(names) {
		for _, kind := range []string{"containers", "images"} {
			if name == "k8s.io" && kind == "images" {
				continue
			}
			found, err := ctr("--namespace", name, kind, "list", "--quiet")
			if err != nil {
				return unknown(err)
			}
			if strings.TrimSpace(found) != "" {
				return true, nil
			}
		}
	}
	return false, nil
}
