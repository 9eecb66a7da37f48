package join

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/karve-k8s/karve/nodes/addons"
)

// runtime is containerd as it is configured.
type containerRuntime struct {
	socket       string
	pluginDirs   []string // of CNI
	configDir    string   // of CNI
	cgroupDriver string
}

const (
	containerdConfig  = "/etc/containerd/config.toml"
	defaultNetworkDir = "/etc/cni/net.d"
)

// packages are Debian's, with a program that each brings.
var packages = []struct{ name, program string }{
	{"containerd", "containerd"},
	{"runc", "runc"},
	{"containernetworking-plugins", ""},
	{"iptables", "iptables"}, // the CNI plugins bridge and portmap call it
}

// pluginDirs are where distributions have the CNI plugins.
var pluginDirs = []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"}

// missingPackages fails if something is missing that cannot be installed.
func (m *Machine) missingPackages() ([]string, error) {
	var missing []string
	for _, p := range packages {
		there := p.program != "" && m.has(p.program)
		if p.program == "" {
			there = slices.ContainsFunc(pluginDirs, func(dir string) bool { return m.exists(dir+"/bridge") && m.exists(dir+"/host-local") })
		}
		if !there {
			missing = append(missing, p.name)
		}
	}
	if len(missing) > 0 && !m.has("apt-get") {
		return nil, fmt.Errorf("these are missing, and this machine has no apt-get to install them: %s (the CNI plugins in %s): install them with this system's own packages, then join again",
			strings.Join(missing, ", "), strings.Join(pluginDirs, " or "))
	}
	return missing, nil
}

// aptOptions let apt wait while something else, such as the daily upgrade, uses it.
var aptOptions = []string{"-y", "-q", "-o", "DPkg::Lock::Timeout=300"}

// containerdData has containerd's images and containers.
const containerdData = "/var/lib/containerd"

// install installs packages, and records them before that.
func (m *Machine) install(ctx context.Context, r *record, missing []string, say func(string, ...any)) error {
	if len(missing) == 0 {
		return nil
	}
	r.Packages = missing
	if err := m.writeRecord(r); err != nil {
		return err
	}
	say("installing %s", strings.Join(missing, ", "))
	args := append([]string{"install"}, aptOptions...)
	// It removes no other package, and asks nothing about a configuration that is there.
	args = append(args, "--no-remove", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold")
	download := append(append(slices.Clone(args), "--download-only"), missing...)
	explain := func(err error) error {
		return fmt.Errorf("the packages cannot be installed: %w: repair apt, or install %s yourself", err, strings.Join(missing, ", "))
	}
	if _, err := m.run(ctx, "apt-get", download...); err != nil {
		// The lists may be old, or missing on a fresh image.
		if _, err := m.run(ctx, "apt-get", "update", "-q", "-o", "DPkg::Lock::Timeout=300"); err != nil {
			return explain(err)
		}
		if _, err := m.run(ctx, "apt-get", download...); err != nil {
			return explain(err)
		}
	}
	// An interruption waits for dpkg, which would leave half an installation.
	if _, err := m.run(context.WithoutCancel(ctx), "apt-get", append(args, missing...)...); err != nil {
		return explain(err)
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return nil
}

// containerd configures it if nobody has, and checks its configuration otherwise. configured tells whether there was
// a configuration before the join: what a package brought a moment ago is nobody's decision.
func (m *Machine) containerd(ctx context.Context, r *record, f facts, o Options, configured bool) (containerRuntime, error) {
	if !configured {
		systemd := m.init() == "systemd" && f.cgroup == 2
		dir := pluginDirs[0]
		for _, d := range pluginDirs {
			if m.exists(d + "/bridge") {
				dir = d
				break
			}
		}
		if err := m.put(r, file{path: containerdConfig, text: containerdText(systemd, dir), mode: 0o644}); err != nil {
			return containerRuntime{}, err
		}
		if err := m.restart(ctx, "containerd"); err != nil {
			return containerRuntime{}, fmt.Errorf("containerd could not be restarted: %w", err)
		}
	}
	rt, err := m.configuredContainerd(ctx)
	if err != nil {
		return rt, err
	}
	if !o.NoNetwork {
		for _, plugin := range []string{"bridge", "host-local", "portmap", "firewall", "loopback"} {
			if !slices.ContainsFunc(rt.pluginDirs, func(dir string) bool { return m.exists(dir + "/" + plugin) }) {
				return rt, fmt.Errorf("containerd looks for CNI plugins in %s, and %s is not there: set bin_dir in %s to the directory that has them, and restart containerd", strings.Join(rt.pluginDirs, ", "), plugin, containerdConfig)
			}
		}
	}
	if err := m.startContainerd(ctx, rt.socket); err != nil {
		return rt, err
	}
	if err := m.answersCRI(ctx, rt.socket); err != nil {
		return rt, err
	}
	r.Runtime = rt.socket
	return rt, m.writeRecord(r)
}

// configuredContainerd is what containerd says about its configuration. It need not run.
func (m *Machine) configuredContainerd(ctx context.Context) (containerRuntime, error) {
	text, err := m.run(ctx, "containerd", "config", "dump")
	if err != nil {
		return containerRuntime{}, fmt.Errorf("containerd cannot read its configuration: %w: repair %s", err, containerdConfig)
	}
	return parseContainerd(text)
}

// startContainerd starts it if it does not listen, and waits until it does.
func (m *Machine) startContainerd(ctx context.Context, socket string) error {
	if m.listens(socket) {
		return nil
	}
	if err := m.start(ctx, "containerd"); err != nil {
		return fmt.Errorf("containerd does not run, and could not be started: %w", err)
	}
	for deadline := time.Now().Add(time.Minute); !m.listens(socket); {
		if time.Now().After(deadline) {
			return fmt.Errorf("containerd was started, but does not listen on %s: see its log (journalctl -u containerd)", socket)
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// answersCRI waits until containerd answers the kubelet's first question. containerd runs without
// CRI if it could not load that plugin.
func (m *Machine) answersCRI(ctx context.Context, socket string) error {
	conn, err := m.dialCRI(socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	for deadline := time.Now().Add(time.Minute); ; {
		asking, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err := runtimeapi.NewRuntimeServiceClient(conn).Version(asking, &runtimeapi.VersionRequest{})
		cancel()
		switch {
		case err == nil:
			return nil
		case status.Code(err) == codes.Unimplemented:
			return errors.New("containerd runs, but could not load its CRI plugin, which the kubelet needs: `ctr plugins list --detailed id==cri` says why. Repair that, and restart containerd")
		case time.Now().After(deadline):
			return fmt.Errorf("containerd does not answer the kubelet's protocol (%w): see its log (journalctl -u containerd)", err)
		}
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
}

func (m *Machine) dialCRI(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+m.path(socket), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// listens connects: containerd leaves its socket behind if it was killed.
func (m *Machine) listens(socket string) bool {
	conn, err := net.DialTimeout("unix", m.path(socket), 5*time.Second)
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// setting matches a line of containerd's own output: it has one key in a line.
var setting = regexp.MustCompile(`^\s*([A-Za-z_]+)\s*=\s*(.*?)\s*$`)

// parseContainerd reads what `containerd config dump` prints. That is no TOML that somebody wrote:
// containerd prints all its settings, each section under its full name and each setting on a line
// of its own. So reading it takes no TOML library, of which Karve has none.
func parseContainerd(text string) (containerRuntime, error) {
	rt := containerRuntime{socket: "/run/containerd/containerd.sock", configDir: defaultNetworkDir, cgroupDriver: "cgroupfs"}
	section, name := "", "runc"
	drivers := map[string]string{}
	var disabled []string
	for line := range strings.SplitSeq(text, "\n") {
		if trimmed := strings.TrimSpace(line); strings.HasPrefix(trimmed, "[") {
			section = strings.ReplaceAll(strings.Trim(trimmed, "[]"), `'`, `"`)
			continue
		}
		s := setting.FindStringSubmatch(line)
		if s == nil {
			continue
		}
		cri := strings.Contains(section, `"io.containerd.grpc.v1.cri"`) || strings.Contains(section, `"io.containerd.cri.v1.runtime"`)
		switch {
		case section == "" && s[1] == "disabled_plugins":
			disabled = listOf(s[2])
		case section == "grpc" && s[1] == "address":
			rt.socket = unquote(s[2])
		case cri && strings.HasSuffix(section, ".cni") && s[1] == "bin_dir" && unquote(s[2]) != "":
			rt.pluginDirs = []string{unquote(s[2])}
		case cri && strings.HasSuffix(section, ".cni") && s[1] == "bin_dirs" && len(listOf(s[2])) > 0:
			rt.pluginDirs = listOf(s[2])
		case cri && strings.HasSuffix(section, ".cni") && s[1] == "conf_dir":
			rt.configDir = unquote(s[2])
		case cri && s[1] == "default_runtime_name":
			name = unquote(s[2])
		case cri && s[1] == "SystemdCgroup":
			parts := strings.Split(strings.TrimSuffix(section, ".options"), ".")
			if s[2] == "true" {
				drivers[strings.Trim(parts[len(parts)-1], `"`)] = "systemd"
			}
		}
	}
	if slices.ContainsFunc(disabled, func(p string) bool {
		return p == "cri" || p == "io.containerd.grpc.v1.cri" || p == "io.containerd.cri.v1.runtime"
	}) {
		return rt, fmt.Errorf("containerd's CRI plugin is disabled, as Docker's package does it: remove \"cri\" from disabled_plugins in %s, run `systemctl restart containerd`, and join again", containerdConfig)
	}
	if d, ok := drivers[name]; ok {
		rt.cgroupDriver = d
	}
	if len(rt.pluginDirs) == 0 {
		return rt, errors.New("`containerd config dump` shows no CRI plugin: install containerd from this system's packages")
	}
	return rt, nil
}

func unquote(s string) string { return strings.Trim(s, `"'`) }

func listOf(s string) []string {
	var all []string
	for part := range strings.SplitSeq(strings.Trim(s, "[]"), ",") {
		if p := unquote(strings.TrimSpace(part)); p != "" {
			all = append(all, p)
		}
	}
	return all
}

// containerdText is a configuration for Kubernetes. Its image for the sandboxes of Pods is the one that
// `karve addons images` lists, because nodes without internet have that one.
func containerdText(systemd bool, pluginDir string) string {
	return fmt.Sprintf(`# Written by karve node join. Everything that is not here has containerd's default.
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = %q
  conf_dir = "/etc/cni/net.d"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = %t
`, addons.PauseImage(addons.DefaultImageRepository), pluginDir, systemd)
}
