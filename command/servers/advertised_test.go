package servers

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes/fake"
)

func TestParseAdvertised(t *testing.T) {
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
		got, err := parseAdvertised(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "", "cluster": {"server": "%s", "certificate-authority-data": "eA=="}}]}`, server))
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
		if got, err := parseAdvertised(text); err == nil || !strings.Contains(err.Error(), "kube-public/cluster-info") {
			t.Errorf("%q: got %v, %v, want an error that names cluster-info", text, got, err)
		}
	}
}
