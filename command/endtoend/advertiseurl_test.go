package endtoend

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"
)

// The address of users is in what they get, and in the serving certificate of the next start. The server's own
// tools do not use it: here, nothing answers there.
func TestAdvertiseURL(t *testing.T) {
	long(t)
	parallel(t)
	dir, copied := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	server := func(text string) string {
		t.Helper()
		config, err := clientcmd.Load([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if len(config.Clusters) != 1 {
			t.Errorf("got %d clusters, want one:\n%s", len(config.Clusters), text)
		}
		made, err := clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
		if err != nil {
			t.Fatal(err)
		}
		return made.Host
	}
	read := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	names := func() []string {
		t.Helper()
		serving, err := certutil.CertsFromFile(filepath.Join(dir, "certs", "serving.crt"))
		if err != nil {
			t.Fatal(err)
		}
		return serving[0].DNSNames
	}
	for _, url := range []string{"https://karve.example:443", "https://other.example:8443"} {
		p := start(t, dir, append(bare, "--write-kubeconfig", copied, "--advertise-url", url)...)
		host := strings.Split(strings.TrimPrefix(url, "https://"), ":")[0]
		if got := names(); !slices.Contains(got, host) || slices.Contains(got, "karve.example") != (host == "karve.example") {
			t.Errorf("%s: the serving certificate is for %q", url, got)
		}
		got := finish(t, command(t, "karve", "kubeconfig", "--data-dir", dir))
		if server(got.stdout) != url || got.stderr != "" {
			t.Errorf("karve kubeconfig: got %s and %q, want %s and no warning", server(got.stdout), got.stderr, url)
		}
		if got := server(read(copied)); got != url {
			t.Errorf("the copy of --write-kubeconfig: got %s, want %s", got, url)
		}
		if got := server(karve(t, "kubeconfig", "--data-dir", dir, "--server", "127.0.0.1")); got != p.url {
			t.Errorf("karve kubeconfig --server 127.0.0.1: got %s, want %s", got, p.url)
		}
		merged := filepath.Join(t.TempDir(), "config")
		karve(t, "kubeconfig", "--data-dir", dir, "--into", merged)
		if got := server(read(merged)); got != url {
			t.Errorf("karve kubeconfig --into: got %s, want %s", got, url)
		}
		if s := statusOf(t, dir, 0); s.URL != p.url || s.AdvertisedURL != url {
			t.Errorf("karve status: got %s and %s, want %s and %s", s.URL, s.AdvertisedURL, p.url, url)
		}
		if got := succeed(t, command(t, "karve", "kubectl", "--data-dir", dir, "get", "--raw", "/readyz")); got != "ok" {
			t.Errorf("karve kubectl, at the server itself: got %s, want ok", got)
		}
		info, err := client(t, p.config()).CoreV1().ConfigMaps("kube-public").Get(t.Context(), "cluster-info", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Data["kubeconfig"]; !strings.Contains(got, "server: "+url) {
			t.Errorf("cluster-info for nodes: got %s, want %s in it", got, url)
		}
		karve(t, "certs", "renew", "--data-dir", dir, "admin")
		if got := server(read(copied)); got != url {
			t.Errorf("the copy after karve certs renew: got %s, want %s", got, url)
		}
		p.stop()
	}
	p := start(t, dir, bare...)
	if got := names(); slices.Contains(got, "other.example") {
		t.Errorf("without the option, the serving certificate is still for %q", got)
	}
	if got, want := karve(t, "kubeconfig", "--data-dir", dir), read(p.kubeconfig); got != want || server(got) != p.url {
		t.Errorf("karve kubeconfig without the option: got %s, want %s", got, want)
	}
	p.stop()
}
