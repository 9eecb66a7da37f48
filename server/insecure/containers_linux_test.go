package insecure

import (
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestContainerNames(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for name, want := range map[string]string{
		// Containers.
		"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod12.slice/cri-containerd-" + id + ".scope": "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod12.slice/cri-containerd-" + id + ".scope",
		"/kubepods/burstable/pod12/" + id:                                    "/kubepods/burstable/pod12/" + id,
		"/kubepods/burstable/pod12":                                          "/kubepods",
		"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod12.slice": "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod12.slice",
		"/system.slice/docker-" + id + ".scope":                              "/system.slice/docker-" + id + ".scope",
		"/system.slice/docker-" + id + ".scope/init.scope":                   "/system.slice/docker-" + id + ".scope",
		"/docker/" + id:      "/docker/" + id,
		"/docker/buildkit/x": "/docker/buildkit",
		"/k8s.io/" + id:      "/k8s.io/" + id,
		"/machine.slice/libpod-" + id + ".scope/container":                                 "/machine.slice/libpod-" + id + ".scope",
		"/machine.slice/systemd-nspawn@debian.service/payload":                             "/machine.slice",
		"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id + ".scope": "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id + ".scope",
		"/lxc.payload.web":         "/lxc.payload.web",
		"/lxc.payload/web/foo":     "/lxc.payload",
		"/lxc/web":                 "/lxc",
		"/system.slice/crio-" + id: "/system.slice/crio-" + id,
		// What connects for containers and users of the cluster.
		"/system.slice/kubelet.service":           "/system.slice/kubelet.service",
		"/system.slice/karve-node.service":        "/system.slice/karve-node.service",
		"/system.slice/containerd.service":        "/system.slice/containerd.service",
		"/system.slice/containerd.service/helper": "/system.slice/containerd.service",
		"/system.slice/crio.service":              "/system.slice/crio.service",
		"/system.slice/cri-docker.service":        "/system.slice/cri-docker.service",
		"/system.slice/docker.service":            "/system.slice/docker.service",
		"/runtime.slice/kubelet.service":          "/runtime.slice/kubelet.service",
		"/openrc.karve-node":                      "/openrc.karve-node",
		"/openrc.containerd":                      "/openrc.containerd",
		// Root's shells, sessions and services, as systemd, OpenRC and others name them.
		"/":                           "",
		"/init.scope":                 "",
		"/system.slice/karve.service": "",
		"/system.slice/ssh.service":   "",
		"/system.slice/cron.service":  "",
		"/system.slice/system-getty.slice/getty@tty1.service":                                           "",
		"/system.slice/run-r0123456789abcdef0123456789abcdef.scope":                                     "",
		"/user.slice/user-0.slice/session-1.scope":                                                      "",
		"/user.slice/user-0.slice/user@0.service/tmux-spawn-0a1b2c3d-0000-0000-0000-000000000000.scope": "",
		"/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-firefox-4711.scope":          "",
		"/user.slice/user-1000.slice/user@1000.service/init.scope":                                      "",
		"/openrc.karve":                            "",
		"/elogind/1":                               "",
		"/lxcfs.service":                           "",
		"/system.slice/backup-kubepods.service":    "",
		"/system.slice/karve-node-network.service": "",
		"/system.slice/backup-containerd.service":  "",
		"/system.slice/docker.service.d":           "",
	} {
		if got := containerOf(name); got != want {
			t.Errorf("containerOf(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestCgroup2Mount(t *testing.T) {
	for line, want := range map[string]string{
		"35 25 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate":   "/sys/fs/cgroup",
		`42 32 0:36 / /sys/fs/cgroup/the\040one rw - cgroup2 cgroup2 rw`:                   "/sys/fs/cgroup/the one",
		"36 25 0:31 / /sys/fs/cgroup/memory rw,nosuid shared:10 - cgroup cgroup rw,memory": "",
		"nonsense":    "",
		"":            "",
		" - cgroup2 ": "",
	} {
		if got, ok := cgroup2Mount(line); got != want || ok != (want != "") {
			t.Errorf("%q: got %q, %v, want %q", line, got, ok, want)
		}
	}
}

// looked are the containers of this machine.
func looked(t testing.TB) *containers {
	t.Helper()
	c := newContainers()
	if err := c.look(); err != nil {
		t.Fatal(err)
	}
	return c
}

// realCgroups makes a control group of this test's, below which it may make others.
func realCgroups(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can make control groups")
	}
	c := looked(t)
	if c.root == "" || !c.whole {
		t.Skip("there is no cgroup v2 hierarchy here, or not all of it")
	}
	dir, err := os.MkdirTemp(c.root, "karve-test-")
	if err != nil {
		t.Skipf("no control group can be made: %v", err)
	}
	t.Cleanup(func() { removeGroup(t, dir) })
	return dir
}

func removeGroup(t *testing.T, dir string) {
	if err := os.Remove(dir); err != nil {
		t.Errorf("a control group stays: %v", err)
	}
}

func makeGroup(t *testing.T, names ...string) string {
	t.Helper()
	dir := filepath.Join(names...)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeGroup(t, dir) })
	return dir
}

// getIn requests url from a process in a control group; more is its environment.
func getIn(t *testing.T, group, url string, more ...string) string {
	t.Helper()
	dir, err := os.Open(group)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(more, childURL+"="+url)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("client in %s: %v: %s", group, err, out)
	}
	return string(out)
}

// TestContainersAreRefused has clients of root's in real control groups: that of a
// Pod with hostNetwork, and those of sessions and services.
func TestContainersAreRefused(t *testing.T) {
	base := realCgroups(t)
	serve := func(opts Options, own string) string {
		l := listen(t, "127.0.0.1:0")
		g := &guard{next: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }), opts: opts, owners: thisProcess()}
		if own != "" {
			inside := newContainers()
			inside.self = filepath.Join(t.TempDir(), "cgroup")
			if err := os.WriteFile(inside.self, []byte("1:name=systemd:/\n0::"+own+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			g.owners.container = inside.of
		}
		srv := &http.Server{Handler: g, ConnContext: ConnContext}
		go srv.Serve(l)
		t.Cleanup(func() { srv.Close() })
		return "http://" + l.Addr().String()
	}
	strict, anyUser := serve(Options{}, ""), serve(Options{AnyUser: true}, "")

	id := strings.Repeat("ab", 32)
	pods := makeGroup(t, base, "kubepods.slice")
	pod := makeGroup(t, pods, "kubepods-pod1.slice")
	container := makeGroup(t, pod, "cri-containerd-"+id+".scope")
	docker := makeGroup(t, base, "docker-"+id+".scope")
	inner := makeGroup(t, docker, "init.scope")
	session := makeGroup(t, base, "session-1.scope")
	service := makeGroup(t, base, "cron.service")
	for _, tc := range []struct{ group, url, want, words string }{
		{container, strict, "403", "cri-containerd-"},
		{pod, strict, "403", "kubepods-pod1.slice"},
		{docker, strict, "403", "docker-"},
		{inner, strict, "403", "docker-"},
		{session, strict, "200", ""},
		{service, strict, "200", ""},
		{session, strict, "200", ""}, // remembered
		{container, strict, "403", "--insecure-any-user"},
		{container, anyUser, "200", ""},
		// The server runs in a container itself.
		{docker, serve(Options{}, strings.TrimPrefix(inner, rootOf(t))), "200", ""},
		{container, serve(Options{}, strings.TrimPrefix(inner, rootOf(t))), "403", "cri-containerd-"},
	} {
		if got := getIn(t, tc.group, tc.url); !strings.HasPrefix(got, tc.want) || !strings.Contains(got, tc.words) {
			t.Errorf("%s: got %q, want %s with %q", tc.group, got, tc.want, tc.words)
		}
	}
	// A socket that is bound to a device is not found, and so refused.
	if got := getIn(t, container, strict, childDevice+"=lo"); !strings.HasPrefix(got, "403") {
		t.Errorf("a container whose socket is bound to lo: got %q, want 403", got)
	}
	if got := getAs(t, 0, strict); !strings.HasPrefix(got, "200") {
		t.Errorf("a client in the test's own group: got %q, want 200", got)
	}
}

func rootOf(t *testing.T) string {
	t.Helper()
	c := looked(t)
	return c.root
}

// A group that has been removed is one that a container has made to hide in, but
// only where all groups can be seen.
func TestRemovedGroup(t *testing.T) {
	base := realCgroups(t)
	dir := filepath.Join(base, "hideout")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	id, ok := inode(dir)
	if !ok {
		t.Fatal("no inode number")
	}
	if got, err := newContainers().of(id); got != "" || err != nil {
		t.Errorf("while it is there: got %q, %v, want none", got, err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if got, err := newContainers().of(id); !strings.Contains(got, "gone") || err != nil {
		t.Errorf("removed: got %q, %v, want it refused", got, err)
	}
	part := looked(t)
	part.whole = false // as in a cgroup namespace
	if got, err := part.of(id); got != "" || err != nil {
		t.Errorf("in a part of the hierarchy: got %q, %v, want none", got, err)
	}
}

// What is not known refuses nobody.
func TestUnknownGroups(t *testing.T) {
	for _, c := range []*containers{
		{mountinfo: "/nowhere", self: "/nowhere"},
		{mountinfo: "/dev/null", self: "/proc/self/cgroup"},
	} {
		if got, err := c.of(4711); got != "" || err != nil {
			t.Errorf("no hierarchy: got %q, %v, want none", got, err)
		}
	}
	c := newContainers()
	for _, id := range []uint64{0, rootGroup} {
		if got, err := c.of(id); got != "" || err != nil {
			t.Errorf("group %d: got %q, %v, want none", id, got, err)
		}
	}
}

// Too many open files, which clients can bring about, let nobody in, and the failure is
// not remembered.
func TestNoFilesLeft(t *testing.T) {
	known := looked(t)
	if known.root == "" {
		t.Skip("there is no cgroup v2 hierarchy here")
	}
	root, ok := inode(known.root)
	if !ok {
		t.Fatal("no inode number")
	}
	known.whole = false
	fresh := newContainers()
	_, server := connect(t, listen(t, "127.0.0.1:0"), "tcp4")

	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	_, walked := known.of(root + 1<<40)
	_, found := fresh.of(root + 1<<40)
	_, owner := socketOwner(addrPort(server.RemoteAddr()), addrPort(server.LocalAddr()))
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{"the groups": walked, "the hierarchy": found, "the owner": owner} {
		if !errors.Is(err, unix.EMFILE) {
			t.Errorf("searching for %s: got %v, want %v", name, err, unix.EMFILE)
		}
	}
	if _, err := known.of(root + 1<<40); err != nil {
		t.Errorf("afterwards, the groups: %v", err)
	}
	if _, err := fresh.of(root + 1<<40); err != nil || fresh.root != known.root {
		t.Errorf("afterwards, the hierarchy: got %q, %v, want %q", fresh.root, err, known.root)
	}
}
