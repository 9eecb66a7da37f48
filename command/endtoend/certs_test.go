package endtoend

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/setup"
)

// Renewing one certificate leaves the serving certificate alone, although this machine may have
// addresses that it is not valid for, and although the command knows none of the server's options.
func TestRenewLeavesOtherCertificates(t *testing.T) {
	t.Parallel()
	for _, domain := range []string{"", "cluster.example"} {
		dir := t.TempDir()
		store, _, err := certs.Ensure(certs.Config{
			Dir: filepath.Join(dir, "certs"), ClusterDomain: domain, NoSync: true, ExtraSANs: []string{"192.0.2.1", "board.example"},
			InterfaceAddrs: func() ([]net.Addr, error) { return nil, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		read := func(name certs.Name) []byte {
			content, err := os.ReadFile(store.CertFile(name))
			if err != nil {
				t.Fatal(err)
			}
			return content
		}
		serving, admin := read(certs.Serving), read(certs.Admin)
		karve(t, "certs", "renew", "--data-dir", dir, string(certs.Admin))
		if bytes.Equal(read(certs.Admin), admin) {
			t.Errorf("domain %q: the named certificate has not been renewed", domain)
		}
		unlock, err := setup.Lock(filepath.Join(dir, "certs"))
		if err != nil {
			t.Fatal(err)
		}
		got := finish(t, command(t, "karve", "certs", "renew", "--data-dir", dir))
		if wantIn(t, got.stderr, "another command"); got.code != 1 {
			t.Errorf("two commands at once: exit code %d, want 1", got.code)
		}
		unlock()
		if !bytes.Equal(read(certs.Serving), serving) {
			t.Errorf("domain %q: the serving certificate has been issued again", domain)
		}
		// An authority that is lost does not become another one, which the cluster would not know.
		lost := store.CertFile(certs.ClientCA)
		if err := errors.Join(os.Remove(lost), os.Remove(store.KeyFile(certs.ClientCA))); err != nil {
			t.Fatal(err)
		}
		got = finish(t, command(t, "karve", "certs", "renew", "--data-dir", dir))
		wantIn(t, got.stderr, "client-ca.crt", "put it back")
		if _, err := os.Stat(lost); got.code != 1 || err == nil {
			t.Errorf("domain %q: exit code %d, want 1, and the authority has been made: %v", domain, got.code, err == nil)
		}
	}
}

// The kubeconfig for another machine has the server that was asked for and no other, without the URL for users.
func TestServersOfKubeconfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, _, err := certs.Ensure(certs.Config{Dir: filepath.Join(dir, "certs"), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	k := store.Kubeconfig(certs.Admin, "https://127.0.0.1:7443")
	k.Advertised = "https://karve.example:443"
	if err := certs.WriteKubeconfig(filepath.Join(dir, "admin.kubeconfig"), k); err != nil {
		t.Fatal(err)
	}
	for server, want := range map[string]string{
		"advertised":                   "",
		"board.example":                "https://board.example:7443",
		"board.example:443":            "https://board.example:443",
		"192.0.2.7":                    "https://192.0.2.7:7443",
		"2001:db8::7":                  "https://[2001:db8::7]:7443",
		"[2001:db8::7]:6443":           "https://[2001:db8::7]:6443",
		"https://proxy.example/karve":  "https://proxy.example/karve",
		"":                             "",
		"http://board.example":         "",
		"board.example:":               "",
		"board.example:70000":          "",
		"https://user:pass@board":      "",
		"not good":                     "",
		"fe80::1%eth0":                 "",
		"https://board.example:6443#x": "",
	} {
		got := finish(t, command(t, "karve", "kubeconfig", "--data-dir", dir, "--server", server))
		if want == "" {
			if got.code != 1 || got.stdout != "" || !strings.Contains(got.stderr, "--server") {
				t.Errorf("%q: got %+v, want an error that names --server", server, got)
			}
			continue
		}
		config, err := clientcmd.Load([]byte(got.stdout))
		if err == nil {
			err = clientcmd.ConfirmUsable(*config, "")
		}
		if err != nil {
			t.Errorf("%q: %+v: %v", server, got, err)
			continue
		}
		if at, users := certs.KubeconfigServers(config); at != want || users != "" || len(config.Contexts) != 1 || len(config.Clusters) != 1 {
			t.Errorf("%q: got:\n%s\nwant one cluster and context, at %s", server, got.stdout, want)
		}
	}
}
