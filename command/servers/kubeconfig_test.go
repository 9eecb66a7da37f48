package servers

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/certs"
)

// kubeconfigWith is a data directory whose kubeconfig has more fields in its cluster and its user.
func kubeconfigWith(t *testing.T, server, cluster, user string) string {
	t.Helper()
	dir := t.TempDir()
	text := `{"apiVersion":"v1","kind":"Config","current-context":"k","contexts":[{"name":"k","context":{"cluster":"k","user":"k"}}],` +
		`"clusters":[{"name":"k","cluster":{"server":"` + server + `"` + cluster + `}}],"users":[{"name":"k","user":{` + user + `}}]}`
	if err := os.WriteFile(filepath.Join(dir, KubeconfigName), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestKubeconfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := Kubeconfig(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none: got %v, want fs.ErrNotExist", err)
	}
	const server = "http://127.0.0.1:1"
	if err := certs.WriteKubeconfig(filepath.Join(dir, KubeconfigName), 0, certs.Kubeconfig{Server: server}); err != nil {
		t.Fatal(err)
	}
	if config, err := Kubeconfig(dir); err != nil || config.Host != server {
		t.Errorf("that of an insecure listener: got %v, %v", config, err)
	}
	const ca, pair = `,"certificate-authority-data":"YQ=="`, `"client-certificate-data":"YQ==","client-key-data":"YQ=="`
	config, err := Kubeconfig(kubeconfigWith(t, "https://127.0.0.1:1", ca, pair))
	if err != nil || string(config.KeyData) != "a" {
		t.Fatalf("as a server writes it: got %v, %v", config, err)
	}
	if config.Proxy == nil { // then that of HTTPS_PROXY counts
		t.Error("a server of this machine is reached through a proxy")
	}
}

func TestKubeconfigThatNoServerWrites(t *testing.T) {
	t.Parallel()
	const https, http = "https://127.0.0.1:1", "http://127.0.0.1:1"
	const ca, pair = `,"certificate-authority-data":"YQ=="`, `"client-certificate-data":"YQ==","client-key-data":"YQ=="`
	for _, test := range []struct{ name, server, cluster, user string }{
		{"a program", https, ca, pair + `,"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"touch","interactiveMode":"Never"}`},
		{"a provider", https, ca, pair + `,"auth-provider":{"name":"gcp"}`},
		{"a token", https, ca, pair + `,"token":"a"`},
		{"a file with a token", http, "", `"tokenFile":"/etc/shadow"`},
		{"a user", http, "", `"username":"a"`},
		{"a password", http, "", `"password":"a"`},
		{"another user", https, ca, pair + `,"as":"a"`},
		{"a file with a certificate", https, ca, `"client-certificate":"/a","client-key-data":"YQ=="`},
		{"a file with a key", https, ca, pair + `,"client-key":"/a"`},
		{"no certificate", https, ca, ``},
		{"a file with a CA", https, `,"certificate-authority":"/a"`, pair},
		{"no CA", https, "", pair},
		{"insecure", https, `,"insecure-skip-tls-verify":true`, pair},
		{"a proxy", https, ca + `,"proxy-url":"http://127.0.0.1:2"`, pair},
		{"another name", https, ca + `,"tls-server-name":"a"`, pair},
		{"no scheme", "127.0.0.1:1", ca, pair},
	} {
		if _, err := Kubeconfig(kubeconfigWith(t, test.server, test.cluster, test.user)); !errors.Is(err, ErrUnlike) {
			t.Errorf("%s: got %v, want ErrUnlike", test.name, err)
		}
	}
}

func TestKubeconfigThatIsNoSmallFile(t *testing.T) {
	t.Parallel()
	directory, large := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(directory, KubeconfigName), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(large, KubeconfigName), []byte(strings.Repeat("#\n", kubeconfigLimit)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{directory, large} {
		if _, err := Kubeconfig(dir); !errors.Is(err, ErrUnlike) {
			t.Errorf("got %v, want ErrUnlike", err)
		}
	}
}
