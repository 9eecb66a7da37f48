package endtoend

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// addons runs karve addons for the server p.
func addons(t *testing.T, p *process, args ...string) outcome {
	t.Helper()
	return finish(t, command(t, "karve", append(append([]string{"addons"}, args...), "--data-dir", p.dir)...))
}

// addonFile returns the path of an addon's file.
func addonFile(p *process, name string) string {
	return filepath.Join(p.dir, "manifests", "addons", name+".yaml")
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// wantAddon fails unless a command says that the server has applied the addon's six objects, and text.
func wantAddon(t *testing.T, got outcome, name, text string) {
	t.Helper()
	if got.code != 0 || !strings.HasPrefix(got.stdout, "addons/"+name+".yaml: applied, objects: 6\n") || !strings.Contains(got.stdout+got.stderr, text) {
		t.Errorf("exit code %d\n%s%swant %q", got.code, got.stdout, got.stderr, text)
	}
}

// What a new cluster with nodes needs: both addons run, and Services have Pods behind them.
func TestAddonsRun(t *testing.T) {
	parallel(t)
	p := start(t, t.TempDir(), "--simulate-nodes", "2", "--cluster-cidr", "10.1.0.0/16", "--cluster-domain", "k8s.example.org", "--advertise-address", "192.0.2.1")
	wantAddon(t, addons(t, p, "apply", "kube-proxy"), "kube-proxy", "")
	wantAddon(t, addons(t, p, "apply", "coredns"), "coredns", "10.96.0.10")
	client := client(t, p.config())
	p.poll("both addons to be ready", func() error {
		proxy, err := client.AppsV1().DaemonSets("kube-system").Get(t.Context(), "kube-proxy", metav1.GetOptions{})
		if err != nil || proxy.Status.NumberReady != 2 {
			return fmt.Errorf("kube-proxy: %+v, %w", proxy.Status, err)
		}
		dns, err := client.AppsV1().Deployments("kube-system").Get(t.Context(), "coredns", metav1.GetOptions{})
		if err != nil || dns.Status.ReadyReplicas != 2 {
			return fmt.Errorf("coredns: %+v, %w", dns.Status, err)
		}
		return nil
	})
	service, err := client.CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
	if err != nil || service.Spec.ClusterIP != "10.96.0.10" {
		t.Errorf("Service kube-dns: got %v, %v, want 10.96.0.10", service.Spec.ClusterIP, err)
	}
	config, err := client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "kube-proxy", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := regexp.MustCompile(`server: https://192\.0\.2\.1:\d+\n`); !want.MatchString(config.Data["kubeconfig.conf"]) {
		t.Errorf("kube-proxy's kubeconfig: got\n%s\nwant the advertised address", config.Data["kubeconfig.conf"])
	}
	if !strings.Contains(config.Data["config.conf"], "clusterCIDR: 10.1.0.0/16\n") {
		t.Errorf("kube-proxy's configuration: got\n%s\nwant the server's --cluster-cidr", config.Data["config.conf"])
	}
	config, err = client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "coredns", metav1.GetOptions{})
	if err != nil || !strings.Contains(config.Data["Corefile"], "kubernetes k8s.example.org ") {
		t.Errorf("Corefile: got %v\n%s\nwant the server's --cluster-domain", err, config.Data["Corefile"])
	}
}

// An option changes what depends on it. What an administrator has changed in the file or in the cluster stays until --force-conflicts.
func TestAddonsApplyAgain(t *testing.T) {
	parallel(t)
	p := start(t, t.TempDir(), append(bare, "--advertise-address", "192.0.2.1")...)
	deployments := client(t, p.config()).AppsV1().Deployments("kube-system")
	apply := func(more ...string) outcome {
		return addons(t, p, append([]string{"apply", "coredns"}, more...)...)
	}
	wantIt := func(image string, replicas int32) {
		t.Helper()
		d, err := deployments.Get(t.Context(), "coredns", metav1.GetOptions{})
		if err != nil || *d.Spec.Replicas != replicas || !strings.HasPrefix(d.Spec.Template.Spec.Containers[0].Image, image) {
			t.Errorf("got %v replicas of %v (%v), want %d of %s", *d.Spec.Replicas, d.Spec.Template.Spec.Containers[0].Image, err, replicas, image)
		}
	}
	const upstreams, mine = "registry.k8s.io/coredns/coredns:v", "registry.example.org/mine:2"

	yaml := apply("-o", "yaml")
	if got := strings.Count(yaml.stdout, "apiVersion:"); yaml.code != 0 || got != 6 {
		t.Errorf("-o yaml: got %d objects, %s", got, yaml.stderr)
	}
	if _, err := os.Stat(addonFile(p, "coredns")); err == nil {
		t.Error("-o yaml has written the file")
	}
	wantAddon(t, apply(), "coredns", "")
	wantIt(upstreams, 2)
	wantAddon(t, apply("--image", "registry.example.org/dns:1", "--replicas", "1"), "coredns", "")
	wantIt("registry.example.org/dns:1", 1)

	kubectl := func(args ...string) {
		t.Helper()
		karve(t, append([]string{"kubectl", "--data-dir", p.dir, "-n", "kube-system"}, args...)...)
	}
	kubectl("scale", "deployment", "coredns", "--replicas", "5")
	kubectl("set", "image", "deployment", "coredns", "coredns="+mine)
	if got := apply(); got.code != 1 || !strings.Contains(got.stdout, "failed, objects: 5\n") ||
		!strings.Contains(got.stdout, `Deployment coredns: Apply failed with 1 conflict: conflict with "kubectl-set" using apps/v1: .spec.template.spec.containers[name="coredns"].image: put that into the file`) {
		t.Errorf("a conflict: got %+v", got)
	}
	wantIt(mine, 5)
	edited := readFile(t, addonFile(p, "coredns"))
	edited = regexp.MustCompile(`image: registry.k8s.io/coredns/.*`).ReplaceAllString(edited, "image: "+mine)
	if err := os.WriteFile(addonFile(p, "coredns"), []byte(edited), 0o600); err != nil {
		t.Fatal(err)
	}
	if all := karve(t, "manifests", "apply", "--data-dir", p.dir); !strings.Contains(all, "addons/coredns.yaml: applied, objects: 6") {
		t.Errorf("with the same in the file: got %s", all)
	}
	wantProblems(t, apply(), "addons/coredns.yaml is not as karve made it", "-o yaml…--force-conflicts replaces the file")
	if readFile(t, addonFile(p, "coredns")) != edited {
		t.Error("an edited file was replaced")
	}
	kubectl("set", "image", "deployment", "coredns", "coredns=registry.example.org/other:3")
	wantAddon(t, apply("--force-conflicts"), "coredns", "")
	wantIt(upstreams, 5)
	kubectl("set", "image", "deployment", "coredns", "coredns="+mine)
	if got := apply(); got.code != 1 {
		t.Errorf("after --force-conflicts, which is for once: got %+v", got)
	}
}

// Without its file, an addon goes as the objects of any removed manifest do, and leaves what existed before.
func TestAddonsGo(t *testing.T) {
	parallel(t)
	p := start(t, t.TempDir(), append(bare, "--advertise-address", "192.0.2.1")...)
	karve(t, "kubectl", "--data-dir", p.dir, "-n", "kube-system", "create", "serviceaccount", "coredns")
	wantAddon(t, addons(t, p, "apply", "coredns"), "coredns", "")
	wantAddon(t, addons(t, p, "apply", "kube-proxy"), "kube-proxy", "")
	if err := os.Remove(addonFile(p, "coredns")); err != nil {
		t.Fatal(err)
	}
	if got := karve(t, "manifests", "prune", "--yes", "--data-dir", p.dir); strings.Count(got, "deleted\n") != 5 || strings.Contains(got, "ServiceAccount") {
		t.Errorf("got %s, want five objects deleted, and the ServiceAccount left", got)
	}
	left := karve(t, "kubectl", "--data-dir", p.dir, "-n", "kube-system", "get", "serviceaccounts,deployments,daemonsets", "-o", "name")
	if !strings.Contains(left, "serviceaccount/coredns\n") || !strings.Contains(left, "daemonset.apps/kube-proxy\n") || strings.Contains(left, "deployment") {
		t.Errorf("left are\n%s", left)
	}
}

// Nodes that join get the address of the DNS from the ConfigMap kubelet-config, unless an
// administrator has put another there.
func TestKubeletsLearnTheDNS(t *testing.T) {
	parallel(t)
	p := start(t, t.TempDir(), append(bare, "--advertise-address", "192.0.2.1")...)
	c := client(t, p.config()).CoreV1().ConfigMaps("kube-system")
	wantAddon(t, addons(t, p, "apply", "coredns"), "coredns",
		"nodes that join now use the DNS at 10.96.0.10. Nodes that joined before keep the DNS that they have. On each, run kubeadm upgrade node phase kubelet-config")
	if got := addons(t, p, "apply", "coredns"); got.stdout != "addons/coredns.yaml: applied, objects: 6\n" {
		t.Errorf("the second time: got %+v", got)
	}
	m, err := c.Get(t.Context(), "kubelet-config", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.Data["kubelet"] = strings.ReplaceAll(m.Data["kubelet"], "- 10.96.0.10", "- 169.254.20.10")
	if _, err := c.Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	wantAddon(t, addons(t, p, "apply", "coredns"), "coredns", "clusterDNS is [169.254.20.10], and the server does not change what somebody has edited")
	if err := c.Delete(t.Context(), "kubelet-config", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wantAddon(t, addons(t, p, "apply", "coredns"), "coredns", "nodes that join now use the DNS at 10.96.0.10")
}

// The DNS' address is where all kubelets look for it.
func TestAddonsWithATakenAddress(t *testing.T) {
	parallel(t)
	p := start(t, t.TempDir(), append(bare, "--advertise-address", "192.0.2.1", "--service-cluster-ip-range", "172.16.3.0/24")...)
	karve(t, "kubectl", "--data-dir", p.dir, "create", "service", "clusterip", "mine", "--clusterip", "172.16.3.10", "--tcp", "80")
	if got := addons(t, p, "apply", "coredns"); got.code != 1 || !strings.Contains(got.stdout, "failed to allocate IP 172.16.3.10: provided IP is already allocated") {
		t.Errorf("exit code %d\n%s%s", got.code, got.stdout, got.stderr)
	}
}

func TestAddonsWithoutAServer(t *testing.T) {
	t.Parallel()
	empty := t.TempDir()
	for _, tc := range []struct {
		args string
		want []string
	}{
		{"apply corends", []string{`there is no command "karve addons apply corends"; did you mean karve addons apply coredns?`}},
		{"delete coredns", []string{`no command "karve addons delete": remove the addon's file…karve manifests prune`}},
		{"list", []string{`no command "karve addons list": karve status`}},
		{"apply coredns --dry-run", []string{"--dry-run; -o yaml | karve kubectl diff"}},
		{"apply coredns kube-proxy", []string{`takes options only, got "kube-proxy"`}},
		{"apply coredns --proxy-mode ipvs", []string{"there is no option --proxy-mode"}},
		{"apply coredns --replicas 0 --image a --image-repository https://b --data-dir " + empty, []string{"--replicas 0", "--image is the whole name", "--image-repository…https://b"}},
		{"apply coredns -o json", []string{`--output "json": want yaml`}},
		{"apply coredns -o --", []string{"--output needs yaml"}},
		{"images -o yaml", []string{`--output "yaml"`}},
		{"apply kube-proxy --server https://a%20b:99999/x --data-dir " + empty, []string{"https://a%20b:99999/x…want https://HOST or https://HOST:PORT"}},
		{"apply coredns --cluster-domain -x- --data-dir " + empty, []string{`--cluster-domain "-x-": want a DNS domain`}},
		{"apply kube-proxy --cluster-cidr 10.0.0.0/33 --proxy-mode userspace --server https://127.0.0.1:6443 --data-dir " + empty, []string{"--cluster-cidr 10.0.0.0/33", `--proxy-mode "userspace": want iptables, nftables, ipvs`, "https://127.0.0.1:6443…--advertise-address"}},
		{"apply coredns --data-dir " + empty, []string{"no server has been started in " + empty}},
	} {
		t.Run(tc.args, func(t *testing.T) {
			t.Parallel()
			wantProblems(t, finish(t, command(t, "karve", append([]string{"addons"}, strings.Fields(tc.args)...)...)), tc.want...)
		})
	}
}
