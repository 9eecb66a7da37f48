package servers

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/certs"
)

// kubeconfigWith is a data directory whose kubeconfig has more fields in its cluster and its user, and a current context that
// was added.
func kubeconfigWith(t *testing.T, server, cluster, user string) string {
	t.Helper()
	dir := t.TempDir()
	text := `{"apiVersion":"v1","kind":"Config","current-context":"k","contexts":[{"name":"karve","context":{"cluster":"karve","user":"karve"}},{"name":"k","context":{"cluster":"k","user":"k"}}],` +
		`"clusters":[{"name":"karve","cluster":{"server":"` + server + `"` + cluster + `}},{"name":"k","cluster":{"server":"https://added"}}],"users":[{"name":"karve","user":{` + user + `}},{"name":"k","user":{"token":"added"}}]}`
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
	if err := certs.WriteKubeconfig(filepath.Join(dir, KubeconfigName), certs.Kubeconfig{Server: server}); err != nil {
		t.Fatal(err)
	}
	if config, err := Kubeconfig(dir); err != nil || config.Host != server || AsWritten(dir) != nil {
		t.Errorf("that of an insecure listener: got %v, %v", config, err)
	}
	const ca, pair = `,"certificate-authority-data":"YQ=="`, `"client-certificate-data":"YQ==","client-key-data":"YQ=="`
	config, err := Kubeconfig(kubeconfigWith(t, "https://127.0.0.1:1", ca, pair))
	if err != nil || string(config.KeyData) != "a" || config.Host != "https://127.0.0.1:1" {
		t.Fatalf("as a server writes it: got %v, %v", config, err)
	}
	if config.Proxy == nil { // then that of HTTPS_PROXY counts
		t.Error("a server of this machine is reached through a proxy")
	}
}

// Nothing that a server does not write is used, and root uses no file with it unasked.
func TestKubeconfigWithMore(t *testing.T) {
	t.Parallel()
	const ca, pair = `,"certificate-authority-data":"YQ=="`, `"client-certificate-data":"YQ==","client-key-data":"YQ=="`
	for _, test := range []struct{ cluster, user string }{
		{ca, pair + `,"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"touch","interactiveMode":"Never"}`},
		{ca, pair + `,"auth-provider":{"name":"gcp"},"token":"a","tokenFile":"/etc/shadow","username":"a","password":"a","as":"a","client-certificate":"/a","client-key":"/a"`},
		{ca + `,"certificate-authority":"/a","proxy-url":"http://127.0.0.1:2","tls-server-name":"a"`, pair},
		{ca + `,"insecure-skip-tls-verify":true`, pair},
	} {
		dir := kubeconfigWith(t, "https://127.0.0.1:1", test.cluster, test.user)
		got, err := Kubeconfig(dir)
		if err != nil {
			t.Fatal(err)
		}
		want := &rest.Config{Host: "https://127.0.0.1:1", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("a"), CertData: []byte("a"), KeyData: []byte("a")}, DisableCompression: got.DisableCompression}
		if got.Proxy = nil; !reflect.DeepEqual(got, want) {
			t.Errorf("%s %s: got %v", test.cluster, test.user, got)
		}
		if err := AsWritten(dir); !errors.Is(err, ErrUnlike) {
			t.Errorf("%s %s: got %v, want ErrUnlike", test.cluster, test.user, err)
		}
	}
	for _, test := range []struct{ server, cluster, user string }{
		{"https://127.0.0.1:1", ca, ``}, {"https://127.0.0.1:1", "", pair}, {"127.0.0.1:1", ca, pair},
	} {
		if _, err := Kubeconfig(kubeconfigWith(t, test.server, test.cluster, test.user)); !errors.Is(err, ErrUnlike) {
			t.Errorf("%v: got %v, want ErrUnlike", test, err)
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
