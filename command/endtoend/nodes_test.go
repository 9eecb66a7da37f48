package endtoend

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/command/nodes"
)

// fakeKubelet serves stats at an address of this machine that is not loopback, which the API server
// does not connect to. It returns the Node's address and port, and the number of requests so far.
func fakeKubelet(t *testing.T) (string, int32, *atomic.Int32) {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(addresses, func(a net.Addr) bool { n, ok := a.(*net.IPNet); return ok && n.IP.IsGlobalUnicast() })
	if at < 0 {
		t.Skip("this machine has no address but loopback, which the API server's proxy refuses")
	}
	ip := addresses[at].(*net.IPNet).IP.String()
	listener, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	requests := new(atomic.Int32)
	kubelet := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.URL.Path != "/stats/summary" || len(r.TLS.PeerCertificates) == 0 || r.TLS.PeerCertificates[0].Subject.CommonName != "kube-apiserver-kubelet-client" {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"node":{"nodeName":"working","cpu":{"usageNanoCores":500000000},"memory":{"workingSetBytes":1073741824}}}`)
	}))
	kubelet.Listener.Close()
	kubelet.Listener = listener
	kubelet.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	kubelet.StartTLS()
	t.Cleanup(kubelet.Close)
	return ip, int32(listener.Addr().(*net.TCPAddr).Port), requests
}

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

// The status has the usage of nodes, from their kubelets, and says why one is unknown. It and the check
// name what the cluster lacks for its nodes. The check does not ask the kubelets.
func TestStatusOfNodes(t *testing.T) {
	long(t)
	parallel(t)
	dir := t.TempDir()
	ip, port, requests := fakeKubelet(t)
	p := start(t, dir, bare...)
	if s := status(t, dir, 0); s.Report != nil || s.NodesUnknown != "" { // nothing is left out of JSON
		t.Errorf("without nodes: got %+v (%s), want nothing about nodes", s.Report, s.NodesUnknown)
	}
	ready := []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
	p.addNode("working", corev1.NodeStatus{
		Conditions: ready, NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.37.2"},
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: port}},
		Allocatable:     corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi")},
	})
	p.addNode("unreachable", corev1.NodeStatus{Conditions: ready, Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}})
	p.addNode("lost", corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse,
		Message: "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:cni plugin not initialized"}}})

	s := status(t, dir, 0)
	if s.Report == nil || len(s.Nodes) != 3 {
		t.Fatalf("got %+v, want three nodes", s.Report)
	}
	for _, n := range s.Nodes {
		switch {
		case n.Name == "working" && (!n.Ready || n.Usage == nil || n.Usage.MilliCPU != 500 || n.Usage.Memory != 1<<30 || n.Usage.Source != "kubelet"):
			t.Errorf("got %+v (%+v), want the usage that the kubelet reports", n, n.Usage)
		case n.Name == "lost" && (n.Ready || n.Usage != nil || n.Unknown != "the Node has no addresses"):
			t.Errorf("got %+v, want that its usage is unknown because it has no address", n)
		case n.Name == "unreachable" && (n.Usage != nil || n.Unknown == ""):
			t.Errorf("got %+v (%+v), want that its usage is unknown, and why", n, n.Usage)
		}
	}
	wants := []string{"no network plugin is ready on lost", "lost has no podCIDR", "no kube-proxy", "no DNS"}
	for _, want := range wants {
		if !slices.ContainsFunc(s.Lacks, func(l nodes.Lack) bool { return strings.Contains(l.What, want) && l.Do != "" }) {
			t.Errorf("lacks: got %+v, want %q and a remedy", s.Lacks, want)
		}
	}
	table := karve(t, "status", "--data-dir", dir)
	for _, want := range append(wants, "working: ready, v1.37.2, CPU 0.50 of 2 (25 %), memory 1024.0 Mi of 4096.0 Mi (25 %)", "lost: not ready (", "usage unknown: ", "karve addons apply kube-proxy") {
		if !strings.Contains(table, want) {
			t.Errorf("karve status: got\n%swant %q in it", table, want)
		}
	}

	before := requests.Load()
	got := finish(t, command(t, "karve", "check", "--data-dir", dir, "--replaces", dir, "--secure-port", "0", "--insecure-port", "-1", "-o", "json"))
	if asked := requests.Load() - before; asked != 0 {
		t.Errorf("karve check asked the kubelet %d times, want that it asks the API server only", asked)
	}
	var findings []struct{ Check, Result, Found, Do string }
	if err := json.Unmarshal([]byte(got.stdout), &findings); err != nil {
		t.Fatalf("karve check: %+v: %v", got, err)
	}
	for _, want := range append(wants, "not ready: lost") {
		if !slices.ContainsFunc(findings, func(f struct{ Check, Result, Found, Do string }) bool {
			return f.Check == "nodes" && f.Result == "warn" && strings.Contains(f.Found, want) && f.Do != ""
		}) {
			t.Errorf("karve check: got %+v, want a warning %q with a remedy", findings, want)
		}
	}
}

// Simulated nodes run nothing, so they lack nothing.
func TestStatusOfSimulatedNodes(t *testing.T) {
	long(t)
	parallel(t)
	dir := t.TempDir()
	start(t, dir, "--simulate-nodes", "2")
	if s := status(t, dir, 0); s.Report == nil || s.Simulated != 2 || len(s.Nodes) != 0 || len(s.Lacks) != 0 {
		t.Errorf("got %+v, want two simulated nodes, which lack nothing", s.Report)
	}
}
