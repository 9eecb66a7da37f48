package join

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/karve-k8s/karve/nodes/addons"
)

// criConfig is what the CRI plugin of containerd 1.6 says.
const criConfig = `{"cni":{"binDir":"/usr/lib/cni","confDir":"/etc/cni/net.d"},"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"options":{"SystemdCgroup":false}}}}}`

// testMachine is a Debian in a directory, with programs that only say that they were called.
type testMachine struct {
	*Machine
	mu       sync.Mutex
	programs map[string]bool
	called   []string
	// answers of programs, by the name, or by the name and the first argument
	answers map[string]func(args []string) (string, error)
	cri     *testCRI
	stopCRI func()
}

func newMachine(t *testing.T) *testMachine {
	t.Helper()
	root, err := os.MkdirTemp("", "node-") // short, for a socket in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	m := &testMachine{programs: map[string]bool{}, answers: map[string]func([]string) (string, error){}, cri: &testCRI{}}
	for _, name := range []string{"systemctl", "apt-get", "containerd", "runc", "iptables", "ctr"} {
		m.programs[name] = true
	}
	m.Machine = &Machine{
		Root: root,
		UID:  func() int { return 0 },
		Has: func(name string) bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.programs[name]
		},
		Run: m.call,
		Addresses: func() ([]net.IPNet, error) {
			return []net.IPNet{{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(24, 32)}, {IP: net.IPv4(127, 0, 0, 1), Mask: net.CIDRMask(8, 32)}}, nil
		},
		Arch: "arm64",
	}
	for path, text := range map[string]string{
		"/etc/machine-id":                     "id-of-board\n",
		"/etc/resolv.conf":                    "nameserver 192.0.2.53\n",
		"/run/systemd/system/x":               "",
		"/sys/fs/cgroup/cgroup.controllers":   "cpuset cpu io memory hugetlb pids\n",
		"/proc/swaps":                         "Filename Type Size Used Priority\n",
		"/proc/self/mountinfo":                "",
		"/proc/sys/net/ipv4/ip_forward":       "0\n",
		"/proc/sys/net/bridge/bridge-nf-call": "",
		containerdConfig:                      "# somebody's own\n",
	} {
		m.write(t, path, text)
	}
	m.write(t, "/proc/sys/net/bridge/bridge-nf-call-iptables", "0\n")
	for _, plugin := range []string{"bridge", "host-local", "portmap", "firewall", "loopback"} {
		m.write(t, "/usr/lib/cni/"+plugin, "")
	}
	m.serveCRI(t)
	return m
}

func (m *testMachine) write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(m.path(path)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.path(path), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (m *testMachine) call(_ context.Context, name string, args ...string) (string, error) {
	line := strings.Join(append([]string{name}, args...), " ")
	if filepath.IsAbs(name) {
		line = strings.Join(append([]string{filepath.Base(name)}, args...), " ")
	}
	m.mu.Lock()
	m.called = append(m.called, line)
	answer := m.answers[filepath.Base(name)]
	if answer == nil && len(args) > 0 {
		answer = m.answers[name+" "+args[0]]
	}
	m.mu.Unlock()
	if answer == nil {
		return "", nil
	}
	return answer(args)
}

func (m *testMachine) wasCalled(begin string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.called, func(c string) bool { return strings.HasPrefix(c, begin) })
}

// tree is every file of the machine with its text.
func (m *testMachine) tree(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(m.Root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		all[strings.TrimPrefix(path, m.Root)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// sameTree ignores what only the running kernel has.
func sameTree(t *testing.T, before, after map[string]string) {
	t.Helper()
	for path, text := range after {
		if old, ok := before[path]; !strings.HasPrefix(path, "/proc/") && (!ok || old != text) {
			t.Errorf("%s is left over or changed: %q", path, text)
		}
	}
	for path := range before {
		if _, ok := after[path]; !ok {
			t.Errorf("%s is gone", path)
		}
	}
}

// testCRI has Pods, which a removal stops and removes.
type testCRI struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	mu       sync.Mutex
	unloaded bool
	pods     []string
	// addresses of Pods; those in the host's network have none
	addresses map[string]string
	// containers that run
	containers []*runtimeapi.Container
	log        []string
}

func (c *testCRI) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unloaded {
		return nil, status.Error(codes.Unimplemented, "unknown service runtime.v1.RuntimeService")
	}
	return &runtimeapi.StatusResponse{Info: map[string]string{"config": criConfig}}, nil
}

func (c *testCRI) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := &runtimeapi.ListPodSandboxResponse{}
	for _, p := range c.pods {
		list.Items = append(list.Items, &runtimeapi.PodSandbox{Id: p, Metadata: &runtimeapi.PodSandboxMetadata{Name: p, Namespace: "default"}})
	}
	return list, nil
}

func (c *testCRI) PodSandboxStatus(_ context.Context, r *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{Network: &runtimeapi.PodSandboxNetworkStatus{Ip: c.addresses[r.PodSandboxId]}}}, nil
}

func (c *testCRI) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &runtimeapi.ListContainersResponse{Containers: slices.Clone(c.containers)}, nil
}

func (c *testCRI) StopContainer(_ context.Context, r *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, fmt.Sprintf("end %s in %d s", r.ContainerId, r.Timeout))
	return &runtimeapi.StopContainerResponse{}, nil
}

func (c *testCRI) StopPodSandbox(_ context.Context, r *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, "stop "+r.PodSandboxId)
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

func (c *testCRI) RemovePodSandbox(_ context.Context, r *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, "remove "+r.PodSandboxId)
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

func (m *testMachine) serveCRI(t *testing.T) {
	t.Helper()
	if err := os.MkdirAll(m.path("/run/containerd"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", m.path("/run/containerd/containerd.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	m.stopCRI = func() {
		server.Stop()
		l.Close() // which Stop does not do before Serve has begun
	}
	runtimeapi.RegisterRuntimeServiceServer(server, m.cri)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(m.stopCRI)
}

func TestMachineIsChecked(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		change func(*testMachine)
		want   []string
	}{
		{"not root", func(m *testMachine) { m.UID = func() int { return 1000 } }, []string{"root", "sudo"}},
		{"no init system", func(m *testMachine) { m.programs["systemctl"] = false }, []string{"does not run systemd", "kubeadm"}},
		{"kubeadm's node", func(m *testMachine) { m.write(t, "/etc/kubernetes/kubelet.conf", "x") }, []string{"/etc/kubernetes/kubelet.conf", "kubeadm reset"}},
		{"k3s' agent", func(m *testMachine) { m.write(t, "/var/lib/rancher/k3s/agent/x", "x") }, []string{"k3s", "another cluster"}},
		{"another kubelet's directory", func(m *testMachine) { m.write(t, "/var/lib/kubelet/cpu_manager_state", "x") }, []string{"/var/lib/kubelet is not empty", "cpu_manager_state"}},
		{"no memory group on a Raspberry Pi", func(m *testMachine) {
			m.write(t, "/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io pids\n")
			m.write(t, "/boot/firmware/cmdline.txt", "quiet\n")
		}, []string{"cgroup_enable=memory", "/boot/firmware/cmdline.txt", "restart the machine"}},
		{"no pids group", func(m *testMachine) { m.write(t, "/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory\n") }, []string{"pids", "cgroup v2"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			tc.change(m)
			before := m.tree(t)
			s := newServer(t, "127.0.0.1")
			wantError(t, Join(t.Context(), m.Machine, optionsFor(s)), tc.want...)
			sameTree(t, before, m.tree(t))
			if s.asked > 0 {
				t.Error("the server was asked nevertheless")
			}
		})
	}
}

func TestContainerdIsRead(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text string
		want containerRuntime
	}{
		"1.6": {criConfig, containerRuntime{[]string{"/usr/lib/cni"}, defaultNetworkDir, "cgroupfs"}},
		"2": {`{"cni":{"binDir":"","binDirs":["/opt/cni/bin","/usr/lib/cni"],"confDir":"/etc/cni/other.d"},"containerd":{"defaultRuntimeName":"crun",
			"runtimes":{"crun":{"options":{"SystemdCgroup":true}},"runc":{"options":{"SystemdCgroup":false}}}}}`,
			containerRuntime{[]string{"/opt/cni/bin", "/usr/lib/cni"}, "/etc/cni/other.d", "systemd"}},
	} {
		if got, err := parseCRI(tc.text); err != nil || !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, tc.want)
		}
	}
	text := containerdText(true, "/usr/lib/cni")
	if !slices.ContainsFunc(addons.Images(addons.Settings{Version: "v1.2.3"}), func(image string) bool { return strings.Contains(text, fmt.Sprintf("sandbox_image = %q\n", image)) }) {
		t.Errorf("the image of sandboxes is not in the list for nodes without internet:\n%s", text)
	}
}

var errStandIn = errors.New("it fails")
