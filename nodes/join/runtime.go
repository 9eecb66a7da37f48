package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/wait"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/karve-k8s/karve/nodes/addons"
)

// containerRuntime is containerd as it is configured.
type containerRuntime struct {
	pluginDirs   []string // of CNI
	configDir    string   // of CNI
	cgroupDriver string
}

const (
	containerdConfig = "/etc/containerd/config.toml"
	containerdSocket = "/run/containerd/containerd.sock"
	// containerdData has containerd's images and containers.
	containerdData    = "/var/lib/containerd"
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
	// apt waits while something else, such as the daily upgrade, uses it. It removes no other package, and asks nothing about a
	// configuration that is there.
	args := []string{"install", "-y", "-q", "-o", "DPkg::Lock::Timeout=300", "--no-remove", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold"}
	download := slices.Concat(args, []string{"--download-only"}, missing)
	_, err := m.run(ctx, "apt-get", download...)
	if err != nil { // the lists may be old, or missing on a fresh image
		if _, err = m.run(ctx, "apt-get", "update", "-q", "-o", "DPkg::Lock::Timeout=300"); err == nil {
			_, err = m.run(ctx, "apt-get", download...)
		}
	}
	if err == nil {
		// An interruption waits for dpkg, which would leave half an installation.
		_, err = m.run(context.WithoutCancel(ctx), "apt-get", slices.Concat(args, missing)...)
	}
	switch {
	case err != nil:
		return fmt.Errorf("the packages cannot be installed: %w: repair apt, or install %s yourself", err, strings.Join(missing, ", "))
	case ctx.Err() != nil:
		return errors.New("interrupted")
	}
	return nil
}

// configureContainerd writes a configuration, if there was none before the join: what a package brought a moment ago is nobody's
// decision.
func (m *Machine) configureContainerd(ctx context.Context, r *record, f facts) error {
	dir := pluginDirs[0]
	if n := slices.IndexFunc(pluginDirs, func(d string) bool { return m.exists(d + "/bridge") }); n >= 0 {
		dir = pluginDirs[n]
	}
	if err := m.put(r, file{path: containerdConfig, text: containerdText(f.cgroup == 2, dir), mode: 0o644}); err != nil {
		return err
	}
	if err := m.restart(ctx, "containerd"); err != nil {
		return fmt.Errorf("containerd could not be restarted: %w", err)
	}
	return nil
}

// hasPlugins fails if containerd does not find the CNI plugins of Karve's network.
func (m *Machine) hasPlugins(rt containerRuntime) error {
	for _, plugin := range []string{"bridge", "host-local", "portmap", "firewall", "loopback"} {
		if !slices.ContainsFunc(rt.pluginDirs, func(dir string) bool { return m.exists(dir + "/" + plugin) }) {
			return fmt.Errorf("containerd looks for CNI plugins in %s, and %s is not there: set bin_dir in %s to the directory that has them, and restart containerd", strings.Join(rt.pluginDirs, ", "), plugin, containerdConfig)
		}
	}
	return nil
}

// containerd starts it if it does not answer, and returns how it is configured.
func (m *Machine) containerd(ctx context.Context) (rt containerRuntime, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var started bool
	last := errors.New("it does not answer")
	err = wait.PollUntilContextCancel(ctx, 500*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		var text string
		if text, last = m.askCRI(ctx); last == nil {
			rt, last = parseCRI(text)
			return true, last
		}
		if status.Code(last) == codes.Unimplemented {
			return false, errors.New("containerd runs without its CRI plugin, which the kubelet needs: remove \"cri\" from disabled_plugins in " + containerdConfig +
				", where Docker's package has it, or see why it cannot be loaded (`ctr plugins list --detailed id==cri`), run `systemctl restart containerd`, and try again")
		}
		if !started {
			started = true
			if _, err := m.run(ctx, "systemctl", "start", "containerd"); err != nil {
				return false, fmt.Errorf("containerd does not run, and could not be started: %w", err)
			}
		}
		return false, nil
	})
	if wait.Interrupted(err) {
		return rt, fmt.Errorf("containerd does not answer the kubelet's protocol on %s (%w): see its log (journalctl -u containerd)", containerdSocket, last)
	}
	return rt, err
}

// askCRI returns the configuration of containerd's CRI plugin, in JSON.
func (m *Machine) askCRI(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := m.dialCRI()
	if err != nil {
		return "", err
	}
	defer conn.Close()
	answer, err := runtimeapi.NewRuntimeServiceClient(conn).Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	return answer.GetInfo()["config"], err
}

func (m *Machine) dialCRI() (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+m.path(containerdSocket), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// parseCRI reads what the Status of containerd 1.6 to 2 has under the key config.
func parseCRI(text string) (rt containerRuntime, err error) {
	var config struct {
		CNI struct {
			BinDir  string   `json:"binDir"`
			BinDirs []string `json:"binDirs"`
			ConfDir string   `json:"confDir"`
		} `json:"cni"`
		Containerd struct {
			DefaultRuntimeName string `json:"defaultRuntimeName"`
			Runtimes           map[string]struct {
				Options struct {
					SystemdCgroup bool
				} `json:"options"`
			} `json:"runtimes"`
		} `json:"containerd"`
	}
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return rt, fmt.Errorf("containerd does not say how it is configured (%w): install containerd from this system's packages", err)
	}
	rt = containerRuntime{pluginDirs: config.CNI.BinDirs, configDir: config.CNI.ConfDir, cgroupDriver: "cgroupfs"}
	if config.CNI.BinDir != "" {
		rt.pluginDirs = append(rt.pluginDirs, config.CNI.BinDir)
	}
	if config.Containerd.Runtimes[config.Containerd.DefaultRuntimeName].Options.SystemdCgroup {
		rt.cgroupDriver = "systemd"
	}
	return rt, nil
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
