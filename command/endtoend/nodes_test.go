package endtoend

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/command/status"
)

// addNode creates a Node as its kubelet does.
func (p *process) addNode(name string, status corev1.NodeStatus) {
	p.t.Helper()
	all := client(p.t, p.config()).CoreV1().Nodes()
	node, err := all.Create(p.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	node.Status = status
	if _, err := all.UpdateStatus(p.t.Context(), node, metav1.UpdateOptions{}); err != nil {
		p.t.Fatal(err)
	}
}

// The status says what the cluster lacks for its nodes.
func TestStatusOfNodes(t *testing.T) {
	long(t)
	parallel(t)
	dir := t.TempDir()
	p := start(t, dir, bare...)
	if s := statusOf(t, dir, 0); s.Report != nil || s.NodesUnknown != "" { // nothing is left out of JSON
		t.Errorf("without nodes: got %+v (%s), want nothing about nodes", s.Report, s.NodesUnknown)
	}
	p.addNode("unreachable", corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
	})
	p.addNode("lost", corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse,
		Message: "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:cni plugin not initialized"}}})

	s := statusOf(t, dir, 0)
	if s.Report == nil || len(s.Nodes) != 2 {
		t.Fatalf("got %+v, want two nodes", s.Report)
	}
	for _, n := range s.Nodes {
		if n.Ready != (n.Name == "unreachable") {
			t.Errorf("got %+v", n)
		}
	}
	wants := []string{"no network plugin is ready on lost", "lost has no podCIDR", "no kube-proxy", "no DNS"}
	for _, want := range wants {
		if !slices.ContainsFunc(s.Lacks, func(l status.Lack) bool { return strings.Contains(l.What, want) && l.Do != "" }) {
			t.Errorf("lacks: got %+v, want %q and a remedy", s.Lacks, want)
		}
	}
	table := karve(t, "status", "--data-dir", dir)
	for _, want := range append(wants, "lost: not ready (", "karve addons apply kube-proxy") {
		if !strings.Contains(table, want) {
			t.Errorf("karve status: got\n%swant %q in it", table, want)
		}
	}
}
