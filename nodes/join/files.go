package join

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/nodes/join/ask"
)

const kernelModules = `# Written by karve node join.
overlay
br_netfilter
`

const sysctls = `# Written by karve node join.
net.ipv4.ip_forward = 1
net.bridge.bridge-nf-call-iptables = 1
`

// place puts everything where the service finds it.
func (m *Machine) place(r *record, o Options, f facts, c *ask.Cluster, rt containerRuntime, k kubelet) error {
	bootstrap, err := bootstrapKubeconfig(c.Server, o.Token, c.CA)
	if err != nil {
		return err
	}
	config, err := kubeletConfiguration(c.Kubelet, f, rt)
	if err != nil {
		return err
	}
	r.Version = k.version
	if err := m.put(r,
		serviceFile(o),
		m.followFile(),
		file{bootstrapFile, bootstrap, 0o600},
		file{caFile, string(c.CA), 0o644},
		file{kubeletConfig, config, 0o644},
		file{modulesFile, kernelModules, 0o644},
		file{sysctlFile, sysctls, 0o644},
	); err != nil {
		return err
	}
	if err := os.MkdirAll(m.path(libDir), 0o755); err != nil {
		return err
	}
	return atomicfile.Rename(k.file, m.path(kubeletFile))
}

// bootstrapKubeconfig is with what the kubelet asks for its certificate.
func bootstrapKubeconfig(server, token string, ca []byte) (string, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters["karve"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos["token"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["karve"] = &clientcmdapi.Context{Cluster: "karve", AuthInfo: "token"}
	config.CurrentContext = "karve"
	text, err := clientcmd.Write(*config)
	return string(text), err
}

// kubeletConfiguration is the cluster's, with what is different on this machine. It stays a map,
// so that fields which this version of Karve does not know are kept.
func kubeletConfiguration(cluster map[string]any, f facts, rt containerRuntime) (string, error) {
	config := maps.Clone(cluster)
	config["apiVersion"], config["kind"] = "kubelet.config.k8s.io/v1beta1", "KubeletConfiguration"
	section := func(parent map[string]any, key string) map[string]any {
		child, ok := parent[key].(map[string]any)
		if !ok {
			child = map[string]any{}
		}
		child = maps.Clone(child)
		parent[key] = child
		return child
	}
	authentication := section(config, "authentication")
	section(authentication, "anonymous")["enabled"] = false
	section(authentication, "webhook")["enabled"] = true
	section(authentication, "x509")["clientCAFile"] = caFile
	section(config, "authorization")["mode"] = "Webhook"
	config["rotateCertificates"] = true
	config["containerRuntimeEndpoint"] = "unix://" + containerdSocket
	// containerd 2 tells the kubelet its driver, older versions do not.
	config["cgroupDriver"] = rt.cgroupDriver
	delete(config, "staticPodPath") // this is no machine of a control plane in Pods
	if f.cgroup == 1 {
		config["failCgroupV1"] = false
	}
	if f.swap {
		config["failSwapOn"] = false
	}
	if f.resolver != "" {
		config["resolvConf"] = f.resolver
	}
	return kubeletText(config)
}

func kubeletText(config map[string]any) (string, error) {
	text, err := yaml.Marshal(config)
	return "# Written by karve node join, from the ConfigMap kubelet-config.\n" + string(text), err
}

// kubeletCommand is what the service runs.
func kubeletCommand(o Options) []string {
	args := []string{
		kubeletFile,
		"--config=" + kubeletConfig,
		"--bootstrap-kubeconfig=" + bootstrapFile,
		"--kubeconfig=" + kubeconfigFile,
		"--cert-dir=" + filepath.Join(kubeletDir, "pki"),
		"--hostname-override=" + o.Name,
	}
	if o.IP != "" {
		args = append(args, "--node-ip="+o.IP)
	}
	if o.Labels != "" {
		args = append(args, "--node-labels="+o.Labels)
	}
	if o.Taints != "" {
		args = append(args, "--register-with-taints="+o.Taints)
	}
	return args
}

// networkConfig is a network for the Pods of one node. The bridge gives up the address that it had in another
// range (forceAddress).
func networkConfig(cidrs []string) string {
	ranges, routes := "", ""
	for i, cidr := range cidrs {
		if i > 0 {
			ranges, routes = ranges+", ", routes+", "
		}
		ranges += fmt.Sprintf(`[{"subnet": %q}]`, cidr)
		if p, err := parseCIDRs(cidr); err == nil && p[0].Addr().Is6() {
			routes += `{"dst": "::/0"}`
		} else {
			routes += `{"dst": "0.0.0.0/0"}`
		}
	}
	return fmt.Sprintf(`{
  "cniVersion": "0.4.0",
  "name": "karve",
  "plugins": [
    {
      "type": "bridge",
      "bridge": %q,
      "isGateway": true,
      "forceAddress": true,
      "ipMasq": true,
      "hairpinMode": true,
      "ipam": {"type": "host-local", "ranges": [%s], "routes": [%s]}
    },
    {"type": "portmap", "capabilities": {"portMappings": true}},
    {"type": "firewall"}
  ]
}
`, bridge, ranges, routes)
}
