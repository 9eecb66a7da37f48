package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/simulate"
)

// node is one that is ready.
func node(name string, change ...func(*corev1.Node)) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: "10.244.0.0/24"}}
	n.Status.NodeInfo.KubeletVersion = "v1.37.2"
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
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

const noNetwork = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized"

// answering is a server that has these answers, and no other.
func answering(answers map[string]string) servers.Getter {
	return func(_ context.Context, path string) ([]byte, error) {
		at, query, _ := strings.Cut(path, "?")
		if _, next, _ := strings.Cut(query, "continue="); next != "" {
			at += " " + next
		}
		if answer, ok := answers[at]; ok {
			return []byte(answer), nil
		}
		return nil, errors.New("not here")
	}
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
	simulated := node("simulated-0", func(n *corev1.Node) { n.Labels = map[string]string{simulate.NodeLabel: ""} })
	report, err := readReport(t.Context(), answering(map[string]string{
		"/api/v1/nodes":        encode(t, "second", node("a"), simulated),
		"/api/v1/nodes second": encode(t, "", node("b", notReady(noNetwork))),
	}))
	if err != nil {
		t.Fatal(err)
	}
	want := []Node{{Name: "a", Ready: true, Kubelet: "v1.37.2"}, {Name: "b", Problem: noNetwork, Kubelet: "v1.37.2"}}
	if report.Simulated != 1 || !slices.Equal(report.Nodes, want) {
		t.Errorf("got %+v, want %+v and a simulated one", report, want)
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
			daemons:  `{"items":[` + set("kube-proxy", 1, 1) + `]}`,
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
	} {
		t.Run(tc.name, func(t *testing.T) {
			answers := complete()
			if tc.change != nil {
				tc.change(answers)
			}
			got := server(answering(answers)).facts(t.Context(), []corev1.Node{tc.node}).lacks()
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
