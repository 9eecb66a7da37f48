package insecure

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// containers recognises control groups (cgroup v2) of containers.
//
// A root process of a Pod with hostNetwork is root for the kernel, and its socket is one of
// this machine's. Only the control group, which the kernel noted when the socket was made,
// distinguishes it from root's shell. A container cannot leave its group: it has no write
// access to the hierarchy, unless it is privileged, and a privileged container is root of the
// machine in other ways as well.
//
// A machine that cannot tell refuses nobody. A kernel before 5.9 reports no group,
// and on a machine with only cgroup v1 all processes are in the root group. A failure to
// look, for example with too many open files, refuses the connection, because a client could cause it.
type containers struct {
	mountinfo, self string // files of /proc, see proc(5)

	mu sync.Mutex

	looked bool   // the next three are known
	root   string // where the hierarchy is mounted; empty: it is not
	whole  bool   // root shows the whole hierarchy, not the part of a cgroup namespace
	own    string // the container that this process is in; empty: none

	known map[uint64]string // answers; the kernel does not reuse identifiers
}

func newContainers() *containers {
	return &containers{mountinfo: "/proc/self/mountinfo", self: "/proc/self/cgroup"}
}

// rootGroup is the identifier of the hierarchy's root.
const rootGroup = 1

// of returns the name of the container's control group that cgroup belongs to. It is empty if
// cgroup belongs to no container or to that of this process, or if this machine cannot tell.
// An error means that looking failed this time.
func (c *containers) of(cgroup uint64) (string, error) {
	if cgroup == 0 || cgroup == rootGroup {
		return "", nil
	}
	c.mu.Lock()
	defer c.mu.Unlock() // one walk for a burst of connections
	if err := c.look(); err != nil {
		return "", err
	}
	if c.root == "" {
		return "", nil
	}
	answer, ok := c.known[cgroup]
	if ok {
		return answer, nil
	}
	switch name, err := c.find(cgroup); {
	case unseen(err):
		return "", nil // neither this answer nor the next error is remembered
	case err != nil:
		return "", fmt.Errorf("searching the control groups: %w", err)
	case name != "":
		if container := containerOf(name); container != "" && container != c.own {
			answer = "control group " + quote(container)
		}
	case c.whole:
		// A process made the socket there, moved, and removed the group or closed it to
		// others. Sessions and services do neither; a container with a part of the
		// hierarchy could.
		answer = "a control group that is gone or hidden"
	}
	if len(c.known) >= 4096 || c.known == nil {
		c.known = map[uint64]string{}
	}
	c.known[cgroup] = answer
	return answer, nil
}

// unseen reports whether err means that nothing is there, or nothing that this process may
// see.
func unseen(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)
}

// look finds the hierarchy, and this process in it, the first time.
func (c *containers) look() error {
	if c.looked {
		return nil
	}
	mounts, err := os.ReadFile(c.mountinfo)
	if err != nil && !unseen(err) {
		return fmt.Errorf("searching for the control groups: %w", err)
	}
	self, err := os.ReadFile(c.self)
	if err != nil && !unseen(err) {
		return fmt.Errorf("searching for the server's control group: %w", err)
	}
	for line := range strings.Lines(string(mounts)) {
		if at, ok := cgroup2Mount(strings.TrimSuffix(line, "\n")); ok {
			c.root = at
			break
		}
	}
	if id, ok := inode(c.root); ok {
		c.whole = id == rootGroup
	}
	for line := range strings.Lines(string(self)) {
		if name, ok := strings.CutPrefix(line, "0::"); ok {
			c.own = containerOf(strings.TrimSuffix(name, "\n"))
		}
	}
	c.looked = true
	return nil
}

// cgroup2Mount reads a line of /proc/self/mountinfo and returns the mount point if it is of
// cgroup v2.
func cgroup2Mount(line string) (at string, ok bool) {
	mount, kind, found := strings.Cut(line, " - ")
	fields := strings.Fields(mount)
	if !found || len(fields) < 5 || !strings.HasPrefix(kind, "cgroup2 ") {
		return "", false
	}
	// The file has \040 for a space.
	at, err := strconv.Unquote(`"` + strings.ReplaceAll(fields[4], `"`, `\"`) + `"`)
	return at, err == nil
}

// find returns the path of a control group within the hierarchy, or nothing if it is not
// there. The identifier of a group is the inode number of its directory.
func (c *containers) find(cgroup uint64) (found string, err error) {
	err = filepath.WalkDir(c.root, func(dir string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil && (dir == c.root || !unseen(err)):
			return err
		case err != nil:
			return nil // it has been removed meanwhile, or cannot be read
		case !entry.IsDir():
			return nil
		}
		id, ok := inode(dir)
		// A 32-bit kernel shows the lower half.
		if ok && (id == cgroup || strconv.IntSize == 32 && id == cgroup&(1<<32-1)) {
			found = "/" + strings.TrimPrefix(strings.TrimPrefix(dir, c.root), "/")
			return filepath.SkipAll
		}
		return nil
	})
	return found, err
}

func inode(name string) (uint64, bool) {
	info, err := os.Stat(name)
	if err != nil {
		return 0, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return uint64(stat.Ino), true
}

// containerName matches the groups in which container runtimes put what they run. The group of
// an OCI container has its identifier of 64 hexadecimal digits (docker-….scope,
// cri-containerd-….scope, crio-….scope, libpod-….scope, or the identifier alone). Pods are
// below kubepods or kubepods.slice, with any prefix. Containers and virtual machines of
// systemd-machined are in machine.slice; those of LXC and of Docker's builder are below groups
// of fixed names. Neither systemd nor a login nor sudo uses any of these names.
//
// The services of kubelets and container runtimes belong to them, because they connect where
// users of the cluster want: the kubelet for probes, and the runtime for a port-forward to a Pod
// with hostNetwork.
var containerName = regexp.MustCompile(`[0-9a-f]{64}|^kubepods$|^(.*-)?kubepods(-.*)?\.slice$|^machine\.slice$|^lxc\.payload(\..*)?$|^lxc$|^docker$|^buildkit$` +
	`|^(kubelet|karve-node|containerd|crio|cri-docker|docker)\.service$|^openrc\.(kubelet|karve-node|containerd|crio|docker)$`)

// containerOf returns the part of a control group's path that names a container, or nothing.
func containerOf(name string) string {
	parts := strings.Split(name, "/")
	for i := len(parts) - 1; i >= 0; i-- {
		if containerName.MatchString(parts[i]) {
			return path.Join("/", path.Join(parts[:i+1]...))
		}
	}
	return ""
}
