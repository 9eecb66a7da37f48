package join

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	karveversion "github.com/karve-k8s/karve/internal/version"
)

// withKubelet makes the machine's service a kubelet: it gets its certificate, creates its Node,
// and is Ready when there is a network.
func withKubelet(t *testing.T, m *testMachine, s *testServer) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "kubelet")
	if err := os.WriteFile(file, []byte("a kubelet"), 0o755); err != nil {
		t.Fatal(err)
	}
	m.answers["kubelet"] = func([]string) (string, error) { return "Kubernetes v1.37.2\n", nil }
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	m.answers["systemctl enable"] = func([]string) (string, error) {
		text, err := os.ReadFile(m.path(bootstrapFile))
		if err != nil {
			return "", err
		}
		// As the kubelet does: its certificate comes after the file that names it.
		half := strings.Replace(string(text), "    token: "+goodToken, "    client-certificate: later.pem\n    client-key: later.pem", 1)
		if half == string(text) {
			return "", errors.New("the bootstrap kubeconfig has no token")
		}
		if err := os.WriteFile(m.path(kubeconfigFile), []byte(half), 0o600); err != nil {
			return "", err
		}
		time.AfterFunc(100*time.Millisecond, func() { _ = os.WriteFile(m.path(kubeconfigFile), text, 0o600) })
		s.setNode("board", func(n *corev1.Node) {
			n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.200.7.0/24", []string{"10.200.7.0/24"}
			n.Status.NodeInfo.MachineID = "id-of-board"
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Message: "cni plugin not initialized"}}
		})
		go func() {
			if until(ctx, func() error { _, err := os.Stat(m.path("/etc/cni/net.d/" + networkName)); return err }) == nil {
				s.setNode("board", ready)
			}
		}()
		return "", os.MkdirAll(m.path(kubeletDir+"/pki"), 0o755)
	}
	return file
}

func TestJoin(t *testing.T) {
	t.Parallel()
	s := newServer(t, "127.0.0.1")
	m := newMachine(t)
	before := m.tree(t)
	o := optionsFor(s)
	o.Kubelet = withKubelet(t, m, s)
	o.Labels, o.Taints = "zone=a, node.kubernetes.io/disk=ssd,node-role=", "gpu=yes:NoSchedule,spot:NoExecute"
	if err := Join(t.Context(), m.Machine, o); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{kubeletFile, caFile, kubeletConfig, kubeconfigFile, kubeletUnit, modulesFile, sysctlFile} {
		if !m.exists(path) {
			t.Errorf("there is no %s", path)
		}
	}
	if m.exists(bootstrapFile) {
		t.Error("the token is still there")
	}
	if got := m.read(containerdConfig); got != "# somebody's own" {
		t.Errorf("containerd's configuration was changed to %q", got)
	}
	if got := m.read("/proc/sys/net/ipv4/ip_forward"); got != "1" {
		t.Errorf("ip_forward is %s", got)
	}
	if network := m.read("/etc/cni/net.d/" + networkName); !strings.Contains(network, `"subnet": "10.200.7.0/24"`) {
		t.Errorf("the network does not have the Node's addresses: %s", network)
	}
	if unit := m.read(kubeletUnit); !strings.Contains(unit, "KillMode=process") || strings.Contains(unit, "abcdef") {
		t.Errorf("got the unit %s", unit)
	} else if want := " --node-labels=node-role=,node.kubernetes.io/disk=ssd,zone=a --register-with-taints=gpu=yes:NoSchedule,spot:NoExecute\n"; !strings.Contains(unit, want) {
		t.Errorf("got the unit %s, want %q", unit, want)
	}
	if left, _ := filepath.Glob(m.path("/usr/local/lib/.karve-node-*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	// The same line again changes nothing.
	if err := Join(t.Context(), m.Machine, o); err != nil {
		t.Error(err)
	}
	s.removeNode("board")
	wantError(t, Join(t.Context(), m.Machine, o), "no longer has the node board", "karve node remove")
	s.setNode("board", func(n *corev1.Node) {
		ready(n)
		n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.200.7.0/24", []string{"10.200.7.0/24"}
	})
	another := o
	another.Name = "other"
	wantError(t, Join(t.Context(), m.Machine, another), "already the node board", "karve node upgrade", "karve node remove")
	state, err := Status(t.Context(), m.Machine)
	if err != nil || !state.Ready || state.Node != "board" || state.Kubelet != "v1.37.2" {
		t.Errorf("got %+v, %v", state, err)
	}

	m.cri.pods = []string{"web", "db"}
	m.write(t, "/proc/self/mountinfo", "1 0 8:1 / / rw\n2 1 0:5 / /var/lib/kubelet/pods/a/volumes/x rw\n3 1 0:5 / /var/lib/kubeletx rw\n")
	m.answers["umount"] = func(args []string) (string, error) {
		m.write(t, "/proc/self/mountinfo", "")
		return "", nil
	}
	if err := Remove(t.Context(), m.Machine, func(string, ...any) {}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"stop web", "remove web", "stop db", "remove db"}; !slices.Equal(m.cri.log, want) {
		t.Errorf("got %v, want %v", m.cri.log, want)
	}
	if !m.wasCalled("umount /var/lib/kubelet/pods/a/volumes/x") || m.wasCalled("umount /var/lib/kubeletx") {
		t.Errorf("got the calls %v", m.called)
	}
	if m.wasCalled("apt-get") {
		t.Error("packages that were there before were touched")
	}
	sameTree(t, before, m.tree(t))
	if m.exists(kubeletDir) || m.exists(configDir) || m.exists(libDir) {
		t.Error("a directory is left over")
	}
	if _, err := Status(t.Context(), m.Machine); !errors.Is(err, errNoNode) {
		t.Errorf("got %v, want that it is no node", err)
	}
}

// withApt gives the machine an apt that knows the package containerd.
func withApt(t *testing.T, m *testMachine) {
	t.Helper()
	m.programs["containerd"] = false
	m.answers["apt-get install"] = func(args []string) (string, error) {
		if slices.Contains(args, "--download-only") {
			return "", nil
		}
		if m.exists(containerdConfig) && !slices.Contains(args, "Dpkg::Options::=--force-confold") {
			return "", errors.New("end of file on stdin at conffile prompt")
		}
		if !slices.Contains(args, "--no-remove") {
			return "", errors.New("docker-ce is removed")
		}
		m.programs["containerd"] = true
		if !m.exists(containerdConfig) {
			m.write(t, containerdConfig, "# the package's\n")
		}
		return "", nil
	}
}

// What was there before the packages stays, after a removal and after a join that failed.
func TestJoinKeepsWhatIsNotThePackages(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprintf("fails=%t", fails), func(t *testing.T) {
			t.Parallel()
			s := newServer(t, "127.0.0.1")
			m := newMachine(t)
			o := optionsFor(s)
			o.Kubelet = withKubelet(t, m, s)
			m.write(t, "/etc/containerd/certs.d/hosts.toml", "a registry")
			m.write(t, containerdData+"/image", "mine")
			if err := os.Chmod(m.path(containerdConfig), 0o600); err != nil {
				t.Fatal(err)
			}
			before := m.tree(t)
			withApt(t, m)
			if fails {
				m.answers["systemctl enable"] = func([]string) (string, error) { return "", errStandIn }
				wantError(t, Join(t.Context(), m.Machine, o), "could not be started")
			} else {
				if err := Join(t.Context(), m.Machine, o); err != nil {
					t.Fatal(err)
				}
				if got := m.read(containerdConfig); got != "# somebody's own" {
					t.Errorf("the administrator's configuration became %q", got)
				}
				if err := Remove(t.Context(), m.Machine, func(string, ...any) {}); err != nil {
					t.Fatal(err)
				}
			}
			sameTree(t, before, m.tree(t))
			if info, err := os.Stat(m.path(containerdConfig)); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the configuration has the mode %v, %v", info.Mode(), err)
			}
		})
	}
}

// Containers outlive a containerd that was stopped.
func TestRemoveStartsContainerd(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.write(t, kubeletDir+"/x", "")
	socket := "/run/containerd/containerd.sock"
	if err := m.writeRecord(&record{Node: "board", Runtime: socket}); err != nil {
		t.Fatal(err)
	}
	m.cri.pods = []string{"web"}
	m.stopCRI()
	m.answers["systemctl start"] = func([]string) (string, error) { return "", errStandIn }
	wantError(t, Remove(t.Context(), m.Machine, t.Logf), "Pods may still run", "it fails", "try again")
	if !m.exists(recordFile) || !m.exists(kubeletDir+"/x") {
		t.Error("something was removed nevertheless")
	}
	m.answers["systemctl start"] = func([]string) (string, error) { m.serveCRI(t); return "", nil }
	if err := Remove(t.Context(), m.Machine, t.Logf); err != nil {
		t.Fatal(err)
	}
	if want := []string{"stop web", "remove web"}; !slices.Equal(m.cri.log, want) {
		t.Errorf("got %v, want %v", m.cri.log, want)
	}
}

func TestJoinLeavesNothingHalfDone(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		change func(*testMachine, *testServer, *Options)
		want   []string
	}{
		{"the token is unknown", func(_ *testMachine, s *testServer, _ *Options) { s.refused = true }, []string{"--token"}},
		{"the name is taken", func(_ *testMachine, s *testServer, _ *Options) { s.setNode("board", ready) }, []string{"--node-name board"}},
		{"an address of another machine", func(_ *testMachine, _ *testServer, o *Options) { o.IP = "192.0.2.99" }, []string{"--node-ip 192.0.2.99", "no such address"}},
		{"no kubelet there", func(_ *testMachine, _ *testServer, o *Options) { o.Kubelet = "/nowhere/kubelet" }, []string{"--kubelet", "/nowhere/kubelet"}},
		{"a kubelet for another machine", func(m *testMachine, _ *testServer, _ *Options) {
			m.answers["kubelet"] = func([]string) (string, error) { return "", errors.New("exec format error") }
		}, []string{"does not run on this machine", "exec format error", "linux/arm64"}},
		{"a kubelet that is newer", func(m *testMachine, _ *testServer, _ *Options) {
			m.answers["kubelet"] = func([]string) (string, error) { return "Kubernetes v1.38.0\n", nil }
		}, []string{"v1.38.0", "not newer", "Take v1.37.2"}},
		{"a checksum that differs", func(_ *testMachine, _ *testServer, o *Options) { o.KubeletSHA256 = strings.Repeat("0", 64) }, []string{"is damaged", "SHA-256"}},
		{"no containerd and no apt", func(m *testMachine, _ *testServer, _ *Options) {
			m.programs["containerd"], m.programs["apt-get"] = false, false
		}, []string{"containerd", "no apt-get"}},
		{"apt fails", func(m *testMachine, _ *testServer, _ *Options) {
			m.programs["containerd"] = false
			m.answers["apt-get"] = func([]string) (string, error) { return "", errStandIn }
		}, []string{"packages cannot be installed", "it fails", "repair apt"}},
		{"a CNI plugin is missing", func(m *testMachine, _ *testServer, _ *Options) { os.Remove(m.path("/usr/lib/cni/portmap")) }, []string{"portmap is not there", "bin_dir"}},
		{"CRI could not be loaded", func(m *testMachine, _ *testServer, _ *Options) { m.cri.unloaded = true }, []string{"without its CRI plugin", "disabled_plugins", "ctr plugins list"}},
		{"the service does not start", func(m *testMachine, _ *testServer, _ *Options) {
			m.answers["systemctl enable"] = func([]string) (string, error) { return "", errStandIn }
		}, []string{"could not be started", "it fails"}},
		{"no certificate in time", func(m *testMachine, _ *testServer, o *Options) {
			o.Timeout = time.Millisecond
			m.answers["systemctl enable"] = func([]string) (string, error) { return "", nil }
			m.answers["journalctl"] = func([]string) (string, error) { return "I1\nE1122 it is forbidden\nI2\n", nil }
		}, []string{"no certificate", "approve it", "E1122 it is forbidden"}},
		{"another plugin's network is taken first", func(m *testMachine, _ *testServer, o *Options) {
			o.PodCIDR = "10.9.0.0/24"
			m.programs["iptables"] = false // nothing is installed for it
			m.write(t, "/etc/cni/net.d/05-other.conf", "{}")
		}, []string{"--pod-cidr 10.9.0.0/24", "05-other.conf"}},
		{"Pod addresses overlap", func(m *testMachine, _ *testServer, o *Options) { o.PodCIDR = "192.0.2.128/25" }, []string{"192.0.2.128/25", "192.0.2.0/24", "--pod-cidr"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, "127.0.0.1")
			m := newMachine(t)
			o := optionsFor(s)
			o.Kubelet = withKubelet(t, m, s)
			tc.change(m, s, &o)
			before := m.tree(t)
			wantError(t, Join(t.Context(), m.Machine, o), tc.want...)
			sameTree(t, before, m.tree(t))
			if m.exists(configDir) || m.exists(libDir) || m.exists(kubeletDir) {
				t.Error("a directory is left over")
			}
		})
	}
}

func TestInterruptedJoin(t *testing.T) {
	t.Parallel()
	s := newServer(t, "127.0.0.1")
	m := newMachine(t)
	o := optionsFor(s)
	o.Kubelet = withKubelet(t, m, s)
	before := m.tree(t)
	ctx, cancel := context.WithCancel(t.Context())
	m.answers["systemctl enable"] = func([]string) (string, error) { cancel(); return "", nil }
	wantError(t, Join(ctx, m.Machine, o), "interrupted")
	sameTree(t, before, m.tree(t))
	// One that was killed is found by the next, also if it was about to end.
	if err := m.writeRecord(&record{Server: s.url, Node: "board", Files: []string{bootstrapFile}}); err != nil {
		t.Fatal(err)
	}
	m.write(t, kubeconfigFile, "a certificate")
	m.write(t, bootstrapFile, "a token")
	wantError(t, Join(t.Context(), m.Machine, o), "interrupted", "karve node remove")
	if err := Remove(t.Context(), m.Machine, func(string, ...any) {}); err != nil {
		t.Fatal(err)
	}
	sameTree(t, before, m.tree(t))
}

func TestRemoveKeepsWhatIsMounted(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.write(t, kubeletDir+"/pods/a/volumes/precious", "data")
	m.write(t, "/proc/self/mountinfo", "2 1 0:5 / /var/lib/kubelet/pods/a/volumes rw\n")
	if err := m.writeRecord(&record{Node: "board"}); err != nil {
		t.Fatal(err)
	}
	wantError(t, Remove(t.Context(), m.Machine, func(string, ...any) {}), "still mounted", kubeletDir)
	if !m.exists(kubeletDir+"/pods/a/volumes/precious") || !m.exists(recordFile) {
		t.Error("something was removed nevertheless")
	}
}

func TestDownload(t *testing.T) {
	t.Parallel()
	text := "a kubelet"
	sum := sha256.Sum256([]byte(text))
	good, bad := hex.EncodeToString(sum[:]), strings.Repeat("0", 64)
	const path = "v1.37.2/bin/linux/arm64/kubelet"
	site := func(published string) string {
		mux := http.NewServeMux()
		mux.HandleFunc("/"+path, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) })
		mux.HandleFunc("/"+path+".sha256", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(published + "\n")) })
		web := httptest.NewServer(mux)
		t.Cleanup(web.Close)
		return web.URL
	}
	m := newMachine(t)
	m.answers["kubelet"] = func([]string) (string, error) { return "Kubernetes v1.37.2\n", nil }
	server := version.MustParseSemantic("v1.37.2+karve.3")
	fetch := func(change func(*Options)) (kubelet, error) {
		o := Options{KubeletURL: site(good), official: site(good), Say: func(string, ...any) {}}
		change(&o)
		return m.fetchKubelet(t.Context(), o, server, t.TempDir())
	}
	file := filepath.Join(t.TempDir(), "kubelet")
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	k, err := fetch(func(*Options) {})
	if err != nil || k.version != "v1.37.2" {
		t.Fatalf("got %+v, %v", k, err)
	}
	if got, err := os.ReadFile(k.file); err != nil || string(got) != text {
		t.Errorf("got %q, %v", got, err)
	}
	for name, tc := range map[string]struct {
		change func(*Options)
		want   []string // of the error; nil: none
	}{
		"a mirror does not vouch for itself":             {func(o *Options) { o.KubeletURL, o.official = site(good), site(bad) }, []string{"is damaged", good}},
		"nor does it have to have sums":                  {func(o *Options) { o.KubeletURL = site("<html>") }, nil},
		"the program's sum is stronger than the site's":  {func(o *Options) { o.official, o.embedded = site(good), bad+"  "+path+"\n" }, []string{"is damaged"}},
		"and needs no site":                              {func(o *Options) { o.official, o.embedded = site("<html>"), good+"  "+path+"\n" }, nil},
		"it is the one that a signature covers":          {func(o *Options) { o.embedded, o.Signed = good+"  "+path+"\n", true }, nil},
		"without it, nothing is signed":                  {func(o *Options) { o.Signed = true }, []string{"KARVE_REQUIRE_SIGNATURE", path, "--kubelet-sha256"}},
		"a sum that the user gives is enough":            {func(o *Options) { o.KubeletSHA256, o.official, o.Signed = good, site(bad), true }, nil},
		"what is published must be a sum":                {func(o *Options) { o.official = site("<html>") }, []string{"kubelet.sha256 is not a checksum", "--kubelet-sha256"}},
		"a file needs no sum":                            {func(o *Options) { o.Kubelet = file }, nil},
		"unless signatures are required":                 {func(o *Options) { o.Kubelet, o.Signed = file, true }, []string{"KARVE_REQUIRE_SIGNATURE", "--kubelet-sha256"}},
		"a file with the user's sum":                     {func(o *Options) { o.Kubelet, o.KubeletSHA256, o.Signed = file, good, true }, nil},
		"a file with another sum":                        {func(o *Options) { o.Kubelet, o.KubeletSHA256 = file, bad }, []string{"is damaged"}},
		"there must be one":                              {func(o *Options) { o.official = site(good) + "/nowhere" }, []string{"404", "--kubelet-sha256"}},
		"a site without this kubelet is named, as a way": {func(o *Options) { o.KubeletURL += "/nowhere" }, []string{"404", "--kubelet-url", "--kubelet FILE"}},
	} {
		_, err := fetch(tc.change)
		if tc.want != nil {
			wantError(t, err, tc.want...)
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	m.Arch = "arm"
	_, err = fetch(func(*Options) {})
	wantError(t, err, "publishes no kubelet for arm", "--kubelet FILE")
}

// The file is of the version in go.mod: after a move to another, scripts/kubelet-sums writes it anew.
func TestEmbeddedSums(t *testing.T) {
	t.Parallel()
	for line := range strings.Lines(embeddedSums) {
		sum, path, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if _, err := checksum([]byte(sum)); err != nil || !strings.HasPrefix(path, karveversion.Kubernetes+"/bin/linux/") {
			t.Errorf("kubelet.sha256 has %q: want those of %s: run scripts/kubelet-sums", line, karveversion.Kubernetes)
		}
	}
}

// containerd takes the first configuration in the order of names, and so it is the one of Pods.
func TestOtherNetworks(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]bool{"10-flannel.conflist": true, "05-cilium.conf": true, "87-podman-bridge.conflist": false, networkName: false, "00-README": false} {
		m := newMachine(t)
		m.write(t, defaultNetworkDir+"/"+name, "{}")
		if got := m.otherNetwork(defaultNetworkDir); (got != "") != first || first && got != defaultNetworkDir+"/"+name {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

// Containers get the time to end that their Pods ask for.
func TestRemoveEndsContainersGracefully(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	if err := m.writeRecord(&record{Node: "board", Runtime: "/run/containerd/containerd.sock"}); err != nil {
		t.Fatal(err)
	}
	m.cri.pods = []string{"web"}
	m.cri.containers = []*runtimeapi.Container{
		{Id: "a"},
		{Id: "b", Annotations: map[string]string{gracePeriod: "5"}},
		{Id: "c", Annotations: map[string]string{gracePeriod: "86400"}},
	}
	leftover := "/usr/local/lib/" + stagePattern + "1"
	m.write(t, leftover+"/kubelet", "of an upgrade that was killed")
	if err := Remove(t.Context(), m.Machine, t.Logf); err != nil {
		t.Fatal(err)
	}
	slices.Sort(m.cri.log[:min(3, len(m.cri.log))])
	if want := []string{"end a in 30 s", "end b in 5 s", "end c in 120 s", "stop web", "remove web"}; !slices.Equal(m.cri.log, want) {
		t.Errorf("got %v, want %v", m.cri.log, want)
	}
	if m.exists(leftover) {
		t.Error("the files of an attempt that was killed are left")
	}
}

func TestDownloadStaysWithHTTPS(t *testing.T) {
	t.Parallel()
	via, err := http.NewRequest(http.MethodGet, "https://dl.example/kubelet", nil)
	if err != nil {
		t.Fatal(err)
	}
	to, err := http.NewRequest(http.MethodGet, "http://dl.example/kubelet", nil)
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, onlyHTTPS(to, []*http.Request{via}), "not https")
	if err := onlyHTTPS(via, []*http.Request{via}); err != nil {
		t.Error(err)
	}
}

func TestUpgrade(t *testing.T) {
	t.Parallel()
	s := newServer(t, "127.0.0.1")
	m := newMachine(t)
	o := optionsFor(s)
	o.Kubelet = withKubelet(t, m, s)
	if err := Join(t.Context(), m.Machine, o); err != nil {
		t.Fatal(err)
	}
	said := ""
	say := func(format string, args ...any) { said += fmt.Sprintf(format, args...) }
	if err := Upgrade(t.Context(), m.Machine, Options{Say: say}); err != nil || !strings.Contains(said, "already") {
		t.Errorf("got %v, %q", err, said)
	}
	newer := filepath.Join(t.TempDir(), "kubelet")
	if err := os.WriteFile(newer, []byte("a newer kubelet"), 0o755); err != nil {
		t.Fatal(err)
	}
	m.answers["kubelet"] = func([]string) (string, error) { return "Kubernetes v1.37.1\n", nil }
	// It never reports.
	err := Upgrade(t.Context(), m.Machine, Options{Kubelet: newer, Timeout: time.Millisecond})
	wantError(t, err, "was not Ready", "it runs again as before")
	if got := m.read(kubeletFile); got != "a kubelet" {
		t.Errorf("the kubelet is %q", got)
	}
	m.answers["systemctl restart"] = func([]string) (string, error) {
		s.setNode("board", func(n *corev1.Node) { ready(n); n.Status.NodeInfo.KubeletVersion = "v1.37.1" })
		return "", nil
	}
	// What the Node says may be the old one's.
	err = Upgrade(t.Context(), m.Machine, Options{Kubelet: newer, Timeout: time.Millisecond})
	wantError(t, err, "was not Ready", "it runs again as before")
	s.mu.Lock()
	s.renewed = time.Now().Add(time.Hour)
	s.mu.Unlock()
	if err := Upgrade(t.Context(), m.Machine, Options{Kubelet: newer}); err != nil {
		t.Fatal(err)
	}
	if got := m.read(kubeletFile); got != "a newer kubelet" {
		t.Errorf("the kubelet is %q", got)
	}
	// The same server has another port.
	moved := strings.Replace(s.url, "127.0.0.1", "localhost", 1)
	err = Upgrade(t.Context(), m.Machine, Options{Kubelet: newer, Server: "https://127.0.0.1:1"})
	wantError(t, err, "https://127.0.0.1:1")
	if state, err := Status(t.Context(), m.Machine); err != nil || !state.Ready || state.Server != s.url {
		t.Errorf("got %+v, %v, want the server as it was", state, err)
	}
	if err := Upgrade(t.Context(), m.Machine, Options{Kubelet: newer, Server: moved}); err != nil {
		t.Fatal(err)
	}
	if state, err := Status(t.Context(), m.Machine); err != nil || !state.Ready || state.Server != moved || !strings.Contains(m.read(kubeconfigFile), "server: "+moved) {
		t.Errorf("got %+v, %v, want the server %s", state, err, moved)
	}
	if m.wasCalled("systemctl stop") || len(m.cri.log) > 0 {
		t.Error("an upgrade ended Pods")
	}
	wantError(t, Upgrade(t.Context(), newMachine(t).Machine, Options{}), "no node")
}

// A node that joined before the cluster had a DNS gets it by an upgrade, although the kubelet has the server's version.
func TestUpgradeTakesTheDNS(t *testing.T) {
	t.Parallel()
	j := newJoined(t, time.Now().Add(time.Hour))
	j.write(t, kubeletConfig, strings.Replace(j.read(kubeletConfig), "- 10.96.0.10", "", 1))
	for _, dns := range []string{"10.96.0.10", "10.96.0.11"} { // an address that is set stays
		j.s.mu.Lock()
		j.s.config["kubelet-config/kubelet"] = "kind: KubeletConfiguration\nclusterDNS: [" + dns + "]\n"
		j.s.mu.Unlock()
		if err := Upgrade(t.Context(), j.Machine, Options{Say: j.o.Say}); err != nil {
			t.Error(err)
		}
		if got := j.read(kubeletConfig); !strings.Contains(got, "clusterDNS:\n- 10.96.0.10\n") || j.restarts != 1 {
			t.Errorf("%d restarts, and the configuration %s", j.restarts, got)
		}
	}
}
