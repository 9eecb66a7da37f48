package datadir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/karve-k8s/karve/certs"
)

// The kubeconfig for another server has that server alone: no context with the URL for users is left.
func TestKubeconfigForAnotherServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.kubeconfig")
	k := certs.Kubeconfig{Server: "https://127.0.0.1:7443", Advertised: "https://karve.example:443"}
	if err := certs.WriteKubeconfig(path, 0, k); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if port, users, err := serversOf(text); err != nil || port != "7443" || users != k.Advertised {
		t.Errorf("got port %q, URL for users %q, error %v, want 7443 and %s", port, users, err, k.Advertised)
	}
	text, err = withServer(text, k.Advertised)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.Load(text)
	if err != nil {
		t.Fatal(err)
	}
	server, users := certs.KubeconfigServers(config)
	if server != k.Advertised || users != "" || len(config.Contexts) != 1 || len(config.Clusters) != 1 {
		t.Errorf("got:\n%s\nwant one cluster and context, at %s", text, k.Advertised)
	}
	if err := clientcmd.ConfirmUsable(*config, ""); err != nil {
		t.Error(err)
	}
}

func TestParseServer(t *testing.T) {
	for text, want := range map[string]string{
		"board.example":                "https://board.example:7443",
		"board.example:443":            "https://board.example:443",
		"192.0.2.7":                    "https://192.0.2.7:7443",
		"192.0.2.7:6443":               "https://192.0.2.7:6443",
		"2001:db8::7":                  "https://[2001:db8::7]:7443",
		"[2001:db8::7]":                "https://[2001:db8::7]:7443",
		"[2001:db8::7]:6443":           "https://[2001:db8::7]:6443",
		"https://board.example":        "https://board.example",
		"https://board.example:6443":   "https://board.example:6443",
		"https://proxy.example/karve":  "https://proxy.example/karve",
		"http://board.example":         "",
		"board.example:":               "",
		"board.example:0":              "",
		"board.example:70000":          "",
		"board.example:port":           "",
		"board.example/path":           "",
		"https://user:pass@board":      "",
		"https://board.example?x=y":    "",
		"https://":                     "",
		"not good":                     "",
		"300.1.1.1":                    "",
		"fe80::1%eth0":                 "",
		"https://board.example:6443#x": "",
	} {
		got, err := parseServer(text, "7443")
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), "--server") {
				t.Errorf("%s: got %v, %v, want an error that names --server", text, got, err)
			}
			continue
		}
		if err != nil || got.String() != want {
			t.Errorf("%s: got %v, %v, want %s", text, got, err, want)
		}
	}
}
