package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/simulate"
)

// node is one that is ready and has 4 processors and 8 Gi.
func node(name string, change ...func(*corev1.Node)) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: "10.244.0.0/24"}}
	n.Status.NodeInfo.KubeletVersion = "v1.37.2"
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi")}
	for _, c := range change {
		c(&n)
	}
	return n
}

func notReady(message string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Message: message}
	}
}

func kubelet(version string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.NodeInfo.KubeletVersion = version }
}

const noNetwork = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized"

// fakeServer answers paths. Any other is not found. asked, if there is one, gets each path.
func fakeServer(t *testing.T, answers map[string]string, asked ...func(path string)) Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, ask := range asked {
			ask(r.URL.Path)
		}
		answer, ok := answers[r.URL.Path]
		if page := r.URL.Query().Get("continue"); page != "" {
			answer, ok = answers[r.URL.Path+" "+page]
		}
		code, text, coded := strings.Cut(answer, " ")
		switch {
		case !ok:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","message":"not here"}`)
		case answer == "hang":
			<-r.Context().Done()
		case coded && len(code) == 3:
			var number int
			fmt.Sscan(code, &number)
			w.WriteHeader(number)
			fmt.Fprint(w, text)
		default:
			fmt.Fprint(w, answer)
		}
	}))
	t.Cleanup(s.Close)
	return Server{Client: s.Client(), URL: s.URL}
}

func encode(t *testing.T, next string, nodes ...corev1.Node) string {
	t.Helper()
	text, err := json.Marshal(corev1.NodeList{ListMeta: metav1.ListMeta{Continue: next}, Items: nodes})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestRead(t *testing.T) {
	const proxy = "/api/v1/nodes/%s/proxy/stats/summary"
	simulated := node("simulated-0", func(n *corev1.Node) { n.Labels = map[string]string{simulate.NodeLabel: ""} })
	answers := map[string]string{
		"/api/v1/nodes":                      encode(t, "second", node("measured"), simulated, node("asked")),
		"/api/v1/nodes second":               encode(t, "", node("broken"), node("refused"), node("young"), node("odd"), node("nowhere", func(n *corev1.Node) { n.Status.Addresses = nil })),
		"/apis/metrics.k8s.io/v1beta1/nodes": `{"items":[{"metadata":{"name":"measured"},"usage":{"cpu":"250m","memory":"1Gi"}},{"metadata":{"name":"simulated-0"},"usage":{"cpu":"1","memory":"1Gi"}}]}`,
		fmt.Sprintf(proxy, "asked"):          `{"node":{"nodeName":"asked","cpu":{"usageNanoCores":1500000000},"memory":{"workingSetBytes":2147483648}}}`,
		fmt.Sprintf(proxy, "broken"):         `503 {"kind":"Status","message":"error trying to reach service: dial tcp 192.0.2.3:10250: connect: connection refused"}`,
		fmt.Sprintf(proxy, "refused"):        "401 Unauthorized",
		fmt.Sprintf(proxy, "young"):          `{"node":{"nodeName":"young","cpu":{},"memory":{}}}`,
		fmt.Sprintf(proxy, "odd"):            "200 <html>",
	}
	var usage atomic.Int32 // questions about it
	s := fakeServer(t, answers, func(path string) {
		if strings.Contains(path, "/proxy/") || strings.Contains(path, "metrics") {
			usage.Add(1)
		}
	})
	s.NodeTimeout = eventually.Limit // on a busy machine
	report, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range report.Nodes {
		if n.Usage != nil || n.Unknown != "" {
			t.Errorf("Read: got %+v, want nothing about its usage", n)
		}
	}
	if asked := usage.Load(); asked != 0 {
		t.Errorf("Read asked %d times about usage", asked)
	}
	s.ReadUsage(t.Context(), report)
	if report.Simulated != 1 || len(report.Nodes) != 7 {
		t.Fatalf("got %+v, want 7 nodes and a simulated one", report)
	}
	for i, want := range []struct {
		name    string
		usage   Usage
		unknown string
	}{
		{"measured", Usage{250, 1 << 30, "metrics.k8s.io"}, ""},
		{"asked", Usage{1500, 2 << 30, "kubelet"}, ""},
		{"broken", Usage{}, "connection refused"},
		{"refused", Usage{}, "401 Unauthorized"},
		{"young", Usage{}, "has not measured yet"},
		{"odd", Usage{}, "not understood"},
		{"nowhere", Usage{}, "the Node has no addresses"},
	} {
		got := report.Nodes[i]
		if got.Name != want.name || !got.Ready || got.MilliCPU != 4000 || got.Memory != 8<<30 || got.Kubelet != "v1.37.2" {
			t.Errorf("got %+v, want the ready node %s", got, want.name)
		}
		if want.unknown == "" && (got.Usage == nil || *got.Usage != want.usage) {
			t.Errorf("%s: got %+v (%s), want %+v", want.name, got.Usage, got.Unknown, want.usage)
		}
		if want.unknown != "" && (got.Usage != nil || !strings.Contains(got.Unknown, want.unknown)) {
			t.Errorf("%s: got %+v (%s), want %s", want.name, got.Usage, got.Unknown, want.unknown)
		}
	}
	for _, l := range report.Lacks { // nothing about them could be read
		t.Errorf("got %+v, want silence about what is not known", l)
	}
}

// A node that does not answer delays the report for a limited time only.
func TestReadUsageDoesNotWaitForANode(t *testing.T) {
	s := fakeServer(t, map[string]string{"/api/v1/nodes": encode(t, "", node("silent")), "/api/v1/nodes/silent/proxy/stats/summary": "hang"})
	s.NodeTimeout = 100 * time.Millisecond
	report, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.ReadUsage(t.Context(), report)
	if got, want := report.Nodes[0].Unknown, "no answer within 100ms"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}

	// The caller has less time: the node did not have its own.
	s.NodeTimeout = eventually.Limit
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	s.ReadUsage(short, report)
	if got, want := report.Nodes[0].Unknown, "no answer before the time for all requests was over"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLacks(t *testing.T) {
	set := func(name string, ready, desired int) string {
		return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"kube-system","labels":{"k8s-app":%[1]q}},"status":{"desiredNumberScheduled":%d,"numberReady":%d}}`, name, desired, ready)
	}
	config := func(yaml string) string {
		text, _ := json.Marshal(map[string]any{"data": map[string]string{"kubelet": "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" + yaml}})
		return string(text)
	}
	const (
		daemons   = "/apis/apps/v1/daemonsets"
		services  = "/api/v1/namespaces/kube-system/services"
		endpoints = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices"
		kubeadms  = "/api/v1/namespaces/kube-system/configmaps/kubelet-config"
		dns       = `{"items":[{"metadata":{"name":"kube-dns"},"spec":{"clusterIP":"10.96.0.10"}}]}`
		none      = `{"items":[]}`
		one       = `{"items":[{"endpoints":[{"conditions":{"ready":false}},{"conditions":{"ready":true}}]}]}`
	)
	complete := func() map[string]string {
		return map[string]string{
			"/version": `{"gitVersion":"v1.37.2+karve.1"}`, daemons: `{"items":[` + set("kube-proxy", 1, 1) + `]}`,
			services: dns, endpoints: one, kubeadms: config("clusterDNS: [10.96.0.10]\n"),
		}
	}
	for _, tc := range []struct {
		name   string
		node   corev1.Node
		change func(map[string]string)
		want   []string // … stands for anything between What and Do
	}{
		{"nothing", node("n"), nil, nil},
		{"a cache for DNS on the node", node("n"), func(a map[string]string) { a[kubeadms] = config("clusterDNS: [169.254.20.10]\n") }, nil},
		{"a node that joined without kubeadm", node("n"), func(a map[string]string) { delete(a, kubeadms) }, nil},
		{"an older kubelet", node("n", kubelet("v1.34.9")), nil, nil},
		{"a newer patch", node("n", kubelet("v1.37.9")), nil, nil},
		{"a node without a range, whose plugin has its own", node("n", func(n *corev1.Node) { n.Spec.PodCIDR = "" }), nil, nil},
		{"a node that is down", node("n", notReady("Kubelet stopped posting node status."), func(n *corev1.Node) { n.Spec.PodCIDR = "" }), nil, nil},
		{"kube-proxy", node("n"), func(a map[string]string) { a[daemons] = none }, []string{"no kube-proxy…karve addons apply kube-proxy"}},
		{"kube-proxy, with flannel", node("n"), func(a map[string]string) { a[daemons] = `{"items":[` + set("kube-flannel-ds", 1, 1) + `]}` }, []string{"no kube-proxy…"}},
		{"kube-proxy, with a plugin that does its work", node("n"), func(a map[string]string) { a[daemons] = `{"items":[` + set("cilium", 1, 1) + `]}` }, nil},
		{"kube-proxy on one of two", node("n"), func(a map[string]string) { a[daemons] = `{"items":[` + set("kube-proxy", 1, 2) + `]}` }, []string{"kube-proxy is ready on 1 of 2 nodes…describe pods"}},
		{"DNS", node("n"), func(a map[string]string) { a[services], a[kubeadms] = none, config("") }, []string{"no DNS: Pods cannot look up the names of Services…karve addons apply coredns"}},
		{"DNS that kubelets use", node("n"), func(a map[string]string) { a[services] = none }, []string{"no DNS…10.96.0.10…karve addons apply coredns"}},
		{"Pods of DNS", node("n"), func(a map[string]string) { a[endpoints] = none }, []string{"DNS has no ready Pod…"}},
		{"clusterDNS", node("n"), func(a map[string]string) { a[kubeadms] = config("") }, []string{"kubelet-config has no clusterDNS…restart…10.96.0.10"}},
		{"the right clusterDNS", node("n"), func(a map[string]string) { a[kubeadms] = config("clusterDNS: [10.0.0.10]\n") }, []string{"kubelet-config makes Pods ask 10.0.0.10, but DNS is at 10.96.0.10…restart…10.96.0.10…edit configmap kubelet-config"}},
		{"a network", node("n", notReady(noNetwork)), nil, []string{"no network plugin is ready on n…install a network plugin"}},
		{"a network and a range", node("n", notReady(noNetwork), func(n *corev1.Node) { n.Spec.PodCIDR = "" }), nil, []string{"no network plugin is ready on n…", "n has no podCIDR…--cluster-cidr"}},
		{"an older kubelet", node("n", kubelet("v1.38.0")), nil, []string{"kubelet of n (v1.38.0) is newer than the API server (v1.37.2+karve.1)…"}},
		{"a newer kubelet", node("n", kubelet("v1.33.1")), nil, []string{"kubelet of n (v1.33.1) is more than 3 minor versions older…upgrade the kubelet"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			answers := complete()
			if tc.change != nil {
				tc.change(answers)
			}
			got := fakeServer(t, answers).facts(t.Context(), []corev1.Node{tc.node}).lacks()
			if len(got) != len(tc.want) {
				t.Fatalf("got %+v, want %q", got, tc.want)
			}
			for i, want := range tc.want {
				text := got[i].What + " " + got[i].Do
				for part := range strings.SplitSeq(want, "…") {
					if !strings.Contains(text, part) {
						t.Errorf("got %q, want %q in it", text, part)
					}
				}
				if got[i].Do == "" {
					t.Errorf("%q has no remedy", got[i].What)
				}
			}
		})
	}
}

// Two nodes must not give Pods the same addresses.
func TestRangeOfAnotherNode(t *testing.T) {
	in := func(cidr string) func(*corev1.Node) { return func(n *corev1.Node) { n.Spec.PodCIDRs = []string{cidr} } }
	pod := func(node, ip, more string) string {
		return fmt.Sprintf(`{"spec":{"nodeName":%q%s},"status":{"podIP":%q}}`, node, more, ip)
	}
	answers := map[string]string{
		"/api/v1/nodes":            encode(t, "", node("a", in("10.244.0.0/24")), node("b", in("10.244.1.0/24"))),
		"/apis/apps/v1/daemonsets": `{}`,
		"/api/v1/pods": `{"metadata":{"continue":"2"},"items":[` + pod("a", "10.244.0.2", "") + "," + pod("b", "10.244.0.9", `,"hostNetwork":true`) + "," +
			pod("b", "10.99.0.9", "") + `]}`,
		"/api/v1/pods 2": `{"items":[` + pod("a", "10.244.1.2", "") + `]}`,
	}
	lacks := func() string {
		report, err := fakeServer(t, answers).Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(report.Lacks)
	}
	if got := lacks(); !strings.Contains(got, "another node's podCIDR on a (range of b):") {
		t.Errorf("got %s", got)
	}
	answers["/apis/apps/v1/daemonsets"] = `{"items":[{"metadata":{"name":"cilium"}}]}`
	if got := lacks(); strings.Contains(got, "podCIDR") {
		t.Errorf("got %s of a plugin with addresses of its own", got)
	}
}
