package endtoend

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/karve-k8s/karve/internal/eventually"
)

// addons runs karve addons for the server p.
func addons(t *testing.T, p *process, args ...string) outcome {
	t.Helper()
	return finish(t, command(t, "karve", append(append([]string{"addons"}, args...), "--data-dir", p.dir)...))
}

// wantActions fails unless a command printed "kind/name ACTION" for each object, and nothing else.
// What it says about nodes and the ConfigMap kubelet-config is left to TestKubeletsLearnTheDNS.
func wantActions(t *testing.T, got outcome, action string, objects ...string) {
	t.Helper()
	var want strings.Builder
	for _, o := range objects {
		fmt.Fprintf(&want, "%s %s\n", o, action)
	}
	objectsOnly, _, _ := strings.Cut(got.stdout, "configmap/kubelet-config ")
	if got.code != 0 || objectsOnly != want.String() {
		t.Errorf("exit code %d\n%s%swant\n%s", got.code, got.stdout, got.stderr, want.String())
	}
}

var (
	coreDNSObjects = []string{"serviceaccount/coredns", "clusterrole/system:coredns", "clusterrolebinding/system:coredns",
		"configmap/coredns", "service/kube-dns", "deployment/coredns"}
	kubeProxyObjects = []string{"serviceaccount/kube-proxy", "clusterrolebinding/kubeadm:node-proxier", "role/kube-proxy", "rolebinding/kube-proxy",
		"configmap/kube-proxy", "daemonset/kube-proxy"}
)

// What a new cluster with nodes needs: both addons run, and Services have Pods behind them.
func TestAddonsRun(t *testing.T) {
	parallel(t)
	p := start(t, t.TempDir(), "--simulate-nodes", "2", "--cluster-cidr", "10.1.0.0/16", "--cluster-domain", "k8s.example.org", "--advertise-address", "192.0.2.1")
	wantActions(t, addons(t, p, "apply", "kube-proxy"), "created", kubeProxyObjects...)
	wantActions(t, addons(t, p, "apply", "coredns"), "created", coreDNSObjects...)
	p.poll("both addons to be ready", func() error {
		var list []struct {
			Name, Image   string
			Made          bool
			Wanted, Ready int
		}
		if err := json.Unmarshal([]byte(addons(t, p, "list", "-o", "json").stdout), &list); err != nil {
			return err
		}
		for _, a := range list {
			if !a.Made || a.Wanted != 2 || a.Ready != 2 || !strings.HasPrefix(a.Image, "registry.k8s.io/") {
				return fmt.Errorf("got %+v", list)
			}
		}
		if len(list) != 2 {
			return fmt.Errorf("got %+v", list)
		}
		return nil
	})
	client := client(t, p.config())
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
	wantProblems(t, addons(t, p, "apply", "kube-proxy", "--cluster-cidr", "10.9.0.0/16"), "the Pods of node simulated-…which is not in 10.9.0.0/16…--cluster-cidr")
}

// Applying again changes nothing, an option changes what depends on it, and what an administrator
// has changed stays until --force-conflicts.
func TestAddonsApplyAgain(t *testing.T) {
	parallel(t)
	p := start(t, t.TempDir(), append(bare, "--advertise-address", "192.0.2.1")...)
	client := client(t, p.config())
	apply := func(more ...string) outcome {
		return addons(t, p, append([]string{"apply", "coredns"}, more...)...)
	}
	version := func() string {
		t.Helper()
		d, err := client.AppsV1().Deployments("kube-system").Get(t.Context(), "coredns", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return d.ResourceVersion
	}

	wantActions(t, apply("--dry-run"), "created (dry run)", coreDNSObjects...)
	yaml := apply("-o", "yaml")
	if got := strings.Count(yaml.stdout, "apiVersion:"); yaml.code != 0 || got != len(coreDNSObjects) {
		t.Errorf("-o yaml: got %d objects, %s", got, yaml.stderr)
	}
	if list := karve(t, "kubectl", "--data-dir", p.dir, "-n", "kube-system", "get", "deployments,services,configmaps", "-o", "name"); strings.Contains(list, "dns") {
		t.Errorf("--dry-run and -o yaml have changed the cluster: %s", list)
	}

	wantActions(t, apply(), "created", coreDNSObjects...)
	before := version()
	wantActions(t, apply(), "unchanged", coreDNSObjects...)
	if after := version(); after != before {
		t.Errorf("applying the same has written the Deployment: resourceVersion %s, then %s", before, after)
	}
	if got := apply("--image", "registry.example.org/dns:1"); !strings.Contains(got.stdout, "\ndeployment/coredns configured\n") || strings.Count(got.stdout, "unchanged") != 6 {
		t.Errorf("another image: got %+v", got)
	}

	kubectl := func(args ...string) {
		t.Helper()
		karve(t, append([]string{"kubectl", "--data-dir", p.dir, "-n", "kube-system"}, args...)...)
	}
	kubectl("scale", "deployment", "coredns", "--replicas", "0")
	wantActions(t, apply("--image", "registry.example.org/dns:1"), "unchanged", coreDNSObjects...)
	kubectl("scale", "deployment", "coredns", "--replicas", "5")
	kubectl("set", "image", "deployment", "coredns", "coredns=registry.example.org/mine:2")
	before = version()
	wantProblems(t, apply(),
		"nothing was changed, because a field has another value that somebody else has set",
		`deployment/coredns: .spec.template.spec.containers[name="coredns"].image: conflict with "kubectl-set" using apps/v1`,
		"--force-conflicts overwrites")
	if after := version(); after != before {
		t.Error("a conflict has changed the Deployment")
	}
	if got := apply("--force-conflicts"); got.code != 0 || !strings.Contains(got.stdout, "deployment/coredns configured\n") {
		t.Errorf("--force-conflicts: got %+v", got)
	}
	d, err := client.AppsV1().Deployments("kube-system").Get(t.Context(), "coredns", metav1.GetOptions{})
	if err != nil || *d.Spec.Replicas != 5 || !strings.HasPrefix(d.Spec.Template.Spec.Containers[0].Image, "registry.k8s.io/coredns/coredns:v") {
		t.Errorf("after --force-conflicts: got %v replicas of %v (%v), want 5 of the default image", *d.Spec.Replicas, d.Spec.Template.Spec.Containers[0].Image, err)
	}
}

// Delete removes what apply has made, and nothing else.
func TestAddonsDelete(t *testing.T) {
	parallel(t)
	p := start(t, t.TempDir(), append(bare, "--advertise-address", "192.0.2.1")...)
	wantProblems(t, addons(t, p, "delete", "coredns", "--yes"), "the cluster has nothing of coredns that karve addons apply has created")
	kubectl := func(args ...string) string {
		t.Helper()
		return karve(t, append([]string{"kubectl", "--data-dir", p.dir, "-n", "kube-system"}, args...)...)
	}
	kubectl("create", "serviceaccount", "coredns")
	kubectl("create", "configmap", "mine")
	if got := addons(t, p, "apply", "coredns"); got.code != 0 {
		t.Fatal(got.stderr)
	}
	wantActions(t, addons(t, p, "apply", "kube-proxy"), "created", kubeProxyObjects...)

	wantProblems(t, addons(t, p, "delete", "coredns"), "standard input is no terminal…use --yes for deleting deployment/coredns")
	got := addons(t, p, "delete", "coredns", "--yes")
	if got.code != 0 || strings.Count(got.stdout, " deleted\n") != 5 || !strings.Contains(got.stdout, "\nserviceaccount/coredns left, because Karve did not make it\n") {
		t.Errorf("got %+v, want five objects deleted, and the ServiceAccount left", got)
	}
	eventually.Nil(t, "the objects to be gone", func() error {
		if list := kubectl("get", "deployments,services,configmaps", "-o", "name"); strings.Contains(list, "dns") {
			return fmt.Errorf("there are %s", list)
		}
		return nil
	})
	left := kubectl("get", "serviceaccounts,configmaps,daemonsets", "-o", "name")
	for _, want := range []string{"serviceaccount/coredns\n", "configmap/mine\n", "configmap/kube-proxy\n", "daemonset.apps/kube-proxy\n"} {
		if !strings.Contains(left, want) {
			t.Errorf("%s is gone; left are\n%s", strings.TrimSpace(want), left)
		}
	}
	backwards := slices.Clone(kubeProxyObjects)
	slices.Reverse(backwards)
	wantActions(t, addons(t, p, "delete", "kube-proxy", "--yes"), "deleted", backwards...)
}

// Nodes that join get the address of the DNS from the ConfigMap kubelet-config, unless an
// administrator has put another there.
func TestKubeletsLearnTheDNS(t *testing.T) {
	parallel(t)
	p := start(t, t.TempDir(), append(bare, "--advertise-address", "192.0.2.1")...)
	c := client(t, p.config()).CoreV1().ConfigMaps("kube-system")
	dns := func() []string {
		t.Helper()
		m, err := c.Get(t.Context(), "kubelet-config", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var config struct{ ClusterDNS []string }
		if err := yaml.Unmarshal([]byte(m.Data["kubelet"]), &config); err != nil {
			t.Fatal(err)
		}
		return config.ClusterDNS
	}
	want := func(got outcome, text string, now ...string) {
		t.Helper()
		if got.code != 0 || !strings.Contains(got.stdout+got.stderr, text) || !slices.Equal(dns(), now) {
			t.Errorf("got %+v and clusterDNS %v, want %q and %v", got, dns(), text, now)
		}
	}
	const old = "configmap/kubelet-config configured\nNodes that joined before keep the DNS that they have. On each, run kubeadm upgrade node phase kubelet-config"
	want(addons(t, p, "apply", "coredns", "--dry-run"), "configmap/kubelet-config configured (dry run)\n")
	want(addons(t, p, "apply", "coredns"), "takes it with karve node upgrade", "10.96.0.10")
	want(addons(t, p, "apply", "coredns"), "configmap/kubelet-config unchanged\n", "10.96.0.10")
	want(addons(t, p, "delete", "coredns", "--yes"), old)

	m, err := c.Get(t.Context(), "kubelet-config", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.Data["kubelet"] = strings.ReplaceAll(m.Data["kubelet"], "clusterDNS: []", "clusterDNS: [169.254.20.10]")
	if _, err := c.Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	want(addons(t, p, "apply", "coredns"), "clusterDNS in ConfigMap kube-system/kubelet-config is 169.254.20.10; --force-conflicts sets it to 10.96.0.10", "169.254.20.10")
	want(addons(t, p, "delete", "coredns", "--yes"), "service/kube-dns deleted", "169.254.20.10")
	want(addons(t, p, "apply", "coredns", "--force-conflicts"), old, "10.96.0.10")
	if err := c.Delete(t.Context(), "kubelet-config", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := addons(t, p, "apply", "coredns"); got.code != 0 || !strings.Contains(got.stderr, "there is no ConfigMap kube-system/kubelet-config") {
		t.Errorf("without kubelet-config: got %+v", got)
	}
}

// The DNS' address is where all kubelets look for it.
func TestAddonsWithATakenAddress(t *testing.T) {
	parallel(t)
	p := start(t, t.TempDir(), append(bare, "--advertise-address", "192.0.2.1", "--service-cluster-ip-range", "172.16.3.0/24")...)
	karve(t, "kubectl", "--data-dir", p.dir, "create", "service", "clusterip", "mine", "--clusterip", "172.16.3.10", "--tcp", "80")
	wantProblems(t, addons(t, p, "apply", "coredns"),
		"the DNS' address 172.16.3.10, the tenth of 172.16.3.0/24, belongs to service default/mine")
	karve(t, "kubectl", "--data-dir", p.dir, "delete", "service", "mine")
	karve(t, "kubectl", "--data-dir", p.dir, "-n", "kube-system", "create", "service", "clusterip", "kube-dns", "--clusterip", "172.16.3.11", "--tcp", "53")
	wantProblems(t, addons(t, p, "apply", "coredns"),
		"Service kube-system/kube-dns has the address 172.16.3.11, and the cluster's DNS is at 172.16.3.10…delete the Service")
}

func TestAddonsWithoutAServer(t *testing.T) {
	t.Parallel()
	empty := t.TempDir()
	for _, tc := range []struct {
		args string
		want []string
	}{
		{"apply corends", []string{`there is no command "karve addons apply corends"; did you mean karve addons apply coredns?`}},
		{"delete kubeproxy", []string{"did you mean karve addons delete kube-proxy?"}},
		{"apply coredns kube-proxy", []string{`takes options only, got "kube-proxy"`}},
		{"apply coredns --proxy-mode ipvs", []string{"there is no option --proxy-mode"}},
		{"apply coredns --replicas 0 --image a --image-repository https://b -o json --data-dir " + empty, []string{"--replicas 0", "--image is the whole name", "--image-repository…https://b", `--output "json": want yaml`}},
		{"apply coredns -o --", []string{"--output needs yaml"}},
		{"images -o yaml", []string{`--output "yaml"`}},
		{"list -o --", []string{"--output needs table or json"}},
		{"apply kube-proxy --server https://a%20b:99999/x --data-dir " + empty, []string{"https://a%20b:99999/x…want https://HOST or https://HOST:PORT"}},
		{"apply coredns --cluster-domain -x- --data-dir " + empty, []string{`--cluster-domain "-x-": want a DNS domain`}},
		{"apply kube-proxy --cluster-cidr 10.0.0.0/33 --proxy-mode userspace --server https://127.0.0.1:6443 --data-dir " + empty, []string{"--cluster-cidr 10.0.0.0/33", `--proxy-mode "userspace": want iptables, nftables, ipvs`, "https://127.0.0.1:6443…--advertise-address"}},
		{"apply coredns --data-dir " + empty, []string{"no server has been started in " + empty}},
		{"list --data-dir " + filepath.Join(empty, "nope"), []string{"no server has been started in " + filepath.Join(empty, "nope")}},
		{"delete coredns --yes --data-dir " + empty, []string{"no server has been started in " + empty}},
	} {
		t.Run(tc.args, func(t *testing.T) {
			t.Parallel()
			wantProblems(t, finish(t, command(t, "karve", append([]string{"addons"}, strings.Fields(tc.args)...)...)), tc.want...)
		})
	}
}
