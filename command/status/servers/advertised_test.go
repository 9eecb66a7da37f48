package servers

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
)

// clusterInfo is a cluster whose ConfigMap cluster-info has a text.
func clusterInfo(kubeconfig string) kubernetes.Interface {
	return fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"}, Data: map[string]string{"kubeconfig": kubeconfig}})
}

func TestReadAdvertised(t *testing.T) {
	for server, want := range map[string]string{
		"https://192.0.2.7:6443":      "192.0.2.7:6443",
		"https://[2001:db8::7]:6443":  "[2001:db8::7]:6443",
		"https://board.example":       "board.example:443",
		"https://127.0.0.1:6443":      "",
		"https://[::1]:6443":          "",
		"https://localhost:6443":      "",
		"https://0.0.0.0:6443":        "",
		"http://192.0.2.7:8080":       "",
		"https://:6443":               "",
		"":                            "",
		"https://\\u0007.example:443": "",
	} {
		got, err := ReadAdvertised(t.Context(), clusterInfo(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "", "cluster": {"server": "%s", "certificate-authority-data": "eA=="}}]}`, server)))
		switch {
		case want == "" && (err == nil || !strings.Contains(err.Error(), "--advertise-address")):
			t.Errorf("%s: got %v, %v, want an error that names --advertise-address", server, got, err)
		case want != "" && err != nil:
			t.Errorf("%s: %v", server, err)
		case want != "" && (got.Address != want || string(got.CA) != "x"):
			t.Errorf("%s: got %+v, want the address %s and the authority", server, got, want)
		}
	}
	if _, err := ReadAdvertised(t.Context(), fake.NewClientset()); err == nil || !strings.Contains(err.Error(), "without --no-kubeadm-objects") {
		t.Errorf("without cluster-info: got %v, want the option that leaves it out", err)
	}
	for _, text := range []string{"", "{", "clusters: []", "apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: 'https://a'}}, {name: b, cluster: {server: 'https://b'}}]"} {
		if got, err := ReadAdvertised(t.Context(), clusterInfo(text)); err == nil || !strings.Contains(err.Error(), "kube-public/cluster-info") || !strings.Contains(err.Error(), "delete the ConfigMap") {
			t.Errorf("%q: got %v, %v, want an error that names cluster-info and the remedy", text, got, err)
		}
	}
}
