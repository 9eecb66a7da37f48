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

	"github.com/karve-k8s/karve/internal/setup"
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
	configured := slices.Contains(r.Files, containerdConfig) && m.exists(containerdConfig)
	if slices.Contains(r.Files, openrcScript) {
		wrong = append(wrong, removeIfThere(m.path(openrcLog)))
	}
	wrong = append(wrong, m.takeBack(r), m.withdraw(ctx, r.SSH, say), removeIfThere(m.path(kubeconfigFile)))
	if hadService {
		_, err := m.run(ctx, "systemctl", "daemon-reload")
		wrong = append(wrong, err)
	}
	if configured && m.has("containerd") {
		wrong = append(wrong, m.restart(ctx, "containerd")) // with its own configuration
	}
	if err := errors.Join(wrong...); err != nil {
		return err
	}
	for _, dir := range []string{"/etc/cni/net.d", "/etc/cni", "/etc/containerd"} {
		if err := m.removeEmpty(dir); err != nil {
			return err
		}
	}
	m.sweep(0)
	if err := os.RemoveAll(m.path(configDir)); err != nil {
		return err
	}
	m.sayPackages(r, say)
	return nil
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
