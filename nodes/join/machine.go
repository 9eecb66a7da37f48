package join

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/karve-k8s/karve/internal/setup"
)

// Machine is this machine. Its fields are for tests and for Install: the zero value is the real one.
type Machine struct {
	// Root is put before every path.
	Root string
	// Run runs a program and returns its standard output. Its error has what the program said.
	Run func(ctx context.Context, name string, args ...string) (string, error)
	// Has tells whether a program is in the PATH.
	Has func(name string) bool
	// UID of this process.
	UID func() int
	// Addresses are those of the network interfaces.
	Addresses func() ([]net.IPNet, error)
	// Arch is Go's name of the processor.
	Arch string
	// Program is the karve that services of the node start; empty: this program.
	Program string
}

func (m *Machine) path(p string) string { return filepath.Join("/", m.Root, p) }

func (m *Machine) exists(p string) bool {
	_, err := os.Lstat(m.path(p))
	return err == nil
}

func (m *Machine) read(p string) string {
	b, _ := os.ReadFile(m.path(p))
	return strings.TrimSpace(string(b))
}

func (m *Machine) run(ctx context.Context, name string, args ...string) (string, error) {
	if m.Run != nil {
		return m.Run(ctx, name, args...)
	}
	return setup.RunFor(ctx, 10*time.Second, []string{"DEBIAN_FRONTEND=noninteractive"}, name, args...)
}

func (m *Machine) has(name string) bool {
	if m.Has != nil {
		return m.Has(name)
	}
	return setup.Has(name)
}

func (m *Machine) arch() string {
	if m.Arch != "" {
		return m.Arch
	}
	return runtime.GOARCH
}

func (m *Machine) addresses() ([]net.IPNet, error) {
	if m.Addresses != nil {
		return m.Addresses()
	}
	all, err := net.InterfaceAddrs()
	var found []net.IPNet
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			found = append(found, *n)
		}
	}
	return found, err
}

// machineID is what the kubelet reports as the Node's machineID.
func (m *Machine) machineID() string {
	for _, file := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		if id := m.read(file); id != "" {
			return id
		}
	}
	return ""
}

// Supported fails where this user cannot make this machine a node.
func Supported(m *Machine) error { return m.supported() }

// supported fails where there can be no node at all, or where this user cannot make one.
func (m *Machine) supported() error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("a node needs Linux, not %s", runtime.GOOS)
	}
	uid := os.Getuid()
	if m.UID != nil {
		uid = m.UID()
	}
	if uid != 0 {
		return errors.New("a node is made by root: run it with sudo")
	}
	if !m.exists("/run/systemd/system") || !m.has("systemctl") {
		return errors.New("this machine does not run systemd, whose service the kubelet is: join with kubeadm instead, by the line that `karve token create --print-join-command` prints on the server")
	}
	return nil
}

// facts are what a kubelet has to be configured for.
type facts struct {
	cgroup   int // version 1 or 2
	swap     bool
	resolver string // instead of /etc/resolv.conf
	notes    []string
}

// look finds what the kubelet would trip over.
func (m *Machine) look() (facts, error) {
	var f facts
	if err := m.otherKubelet(); err != nil {
		return f, err
	}
	if err := m.controlGroups(&f); err != nil {
		return f, err
	}
	if lines := strings.Split(m.read("/proc/swaps"), "\n"); len(lines) > 1 {
		f.swap = true
		f.notes = append(f.notes, "swap is on: the kubelet is told to accept that, and Pods do not use it")
	}
	// Pods cannot reach the stub of systemd-resolved, which listens on this machine's loopback.
	const resolved = "/run/systemd/resolve/resolv.conf"
	if strings.Contains(m.read("/etc/resolv.conf"), "127.0.0.53") && m.exists(resolved) {
		f.resolver = resolved
	}
	return f, nil
}

// otherKubelet refuses a machine where another kubelet has been installed.
func (m *Machine) otherKubelet() error {
	for _, file := range []string{"/etc/kubernetes/kubelet.conf", "/etc/kubernetes/bootstrap-kubelet.conf"} {
		if m.exists(file) {
			return fmt.Errorf("%s: kubeadm has made this machine a node already: remove that with `kubeadm reset` first", file)
		}
	}
	for _, dir := range []string{"/var/lib/rancher/k3s/agent", "/var/lib/k0s/kubelet"} {
		if m.exists(dir) {
			return fmt.Errorf("%s: this machine is a node of another cluster already: remove that first", dir)
		}
	}
	entries, err := os.ReadDir(m.path(kubeletDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return e.Name() == lostFound })
	if len(entries) > 0 {
		return fmt.Errorf("%s is not empty (%s): another kubelet has used it: remove it and its mounts, if nothing in it is needed", kubeletDir, entries[0].Name())
	}
	if l, err := net.Listen("tcp", ":10250"); err == nil {
		l.Close()
	} else if m.Root == "" {
		return fmt.Errorf("port 10250 is not free (%w): another kubelet runs on this machine; stop and remove it", err)
	}
	return nil
}

// controlGroups finds the version, and whether those that the kubelet needs are on.
func (m *Machine) controlGroups(f *facts) error {
	var on []string
	if m.exists("/sys/fs/cgroup/cgroup.controllers") {
		f.cgroup = 2
		on = strings.Fields(m.read("/sys/fs/cgroup/cgroup.controllers"))
	} else {
		f.cgroup = 1
		for line := range strings.SplitSeq(m.read("/proc/cgroups"), "\n") {
			if fields := strings.Fields(line); len(fields) == 4 && fields[3] == "1" && m.exists("/sys/fs/cgroup/"+fields[0]) {
				on = append(on, fields[0])
			}
		}
		f.notes = append(f.notes, "this machine has cgroup v1, which Kubernetes no longer supports and will drop: the kubelet is told to accept it. A newer Debian has cgroup v2")
	}
	var off []string
	for _, name := range []string{"cpu", "cpuset", "memory", "pids"} {
		if !slices.Contains(on, name) {
			off = append(off, name)
		}
	}
	if slices.Contains(off, "memory") {
		for _, file := range []string{"/boot/firmware/cmdline.txt", "/boot/cmdline.txt"} {
			if m.exists(file) {
				return fmt.Errorf("the control group \"memory\" is off, as is usual on Raspberry Pi OS: add cgroup_enable=memory to the line in %s, and restart the machine", file)
			}
		}
	}
	if len(off) > 0 {
		return fmt.Errorf("the kernel's control group %s is off (cgroup v%d): turn it on, for example by cgroup_enable=%s on the kernel's command line, and restart the machine", strings.Join(off, ", "), f.cgroup, off[0])
	}
	return nil
}

// hasAddress tells whether an address is one of this machine's.
func (m *Machine) hasAddress(text string) bool {
	addresses, err := m.addresses()
	return err == nil && slices.ContainsFunc(addresses, func(p net.IPNet) bool { return p.IP.Equal(net.ParseIP(text)) })
}

// makeStage makes a directory on the file system where the kubelet will be.
func (m *Machine) makeStage() (string, error) {
	if err := os.MkdirAll(m.path(filepath.Dir(libDir)), 0o755); err != nil {
		return "", err
	}
	m.sweep(24 * time.Hour)
	return os.MkdirTemp(m.path(filepath.Dir(libDir)), stagePattern)
}

const stagePattern = ".karve-node-"

// sweep removes what attempts that were killed have left, and none that may still run.
func (m *Machine) sweep(age time.Duration) {
	left, _ := filepath.Glob(m.path(filepath.Join(filepath.Dir(libDir), stagePattern+"*")))
	for _, dir := range left {
		if info, err := os.Stat(dir); err == nil && time.Since(info.ModTime()) >= age {
			_ = os.RemoveAll(dir)
		}
	}
}

// prepareKernel loads modules and sets what the network of Pods needs.
func (m *joining) prepareKernel(ctx context.Context) error {
	for module := range strings.SplitSeq(kernelModules, "\n") {
		if module == "" || strings.HasPrefix(module, "#") {
			continue
		}
		// It may be built in, and then modprobe need not know it.
		if _, err := m.run(ctx, "modprobe", module); err != nil && !m.exists("/proc/sys/net/bridge") && module == "br_netfilter" {
			return fmt.Errorf("the kernel module br_netfilter cannot be loaded (%w): Services need it; install the kernel's modules, or restart after a kernel upgrade", err)
		}
	}
	for line := range strings.SplitSeq(sysctls, "\n") {
		name, value, ok := strings.Cut(line, "=")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		file := "/proc/sys/" + strings.ReplaceAll(strings.TrimSpace(name), ".", "/")
		value = strings.TrimSpace(value)
		if m.read(file) == value {
			continue
		}
		if err := os.WriteFile(m.path(file), []byte(value+"\n"), 0o644); err != nil {
			return fmt.Errorf("sysctl %s = %s: %w", strings.TrimSpace(name), value, err)
		}
	}
	return nil
}
