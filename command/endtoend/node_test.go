package endtoend

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/nodes/join"
)

// emptyMachine is a Debian in a directory: it has what a node needs, except a kubelet.
func emptyMachine(t *testing.T) *join.Machine {
	t.Helper()
	root := t.TempDir()
	for path, text := range map[string]string{
		"etc/machine-id":                   "of-the-test\n",
		"run/systemd/system/here":          "",
		"sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
		"proc/swaps":                       "Filename\n",
	} {
		file := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return &join.Machine{
		Root: root,
		UID:  func() int { return 0 },
		Has:  func(string) bool { return true },
		Run: func(_ context.Context, name string, args ...string) (string, error) {
			return "", fmt.Errorf("the test runs %s %v", name, args)
		},
		Addresses: func() ([]net.IPNet, error) { return nil, nil },
	}
}

// TestNodeFindsItsCluster joins up to the kubelet, which is not there: all that is asked of the
// server has been answered then. scripts/nodes goes on with real kubelets.
func TestNodeFindsItsCluster(t *testing.T) {
	parallel(t)
	dir := t.TempDir()
	p := start(t, dir, "--secure-port", "0", "--insecure-port", "-1", "--disable-scheduler") // a controller signs cluster-info
	token := strings.TrimSuffix(karve(t, "token", "create", "--data-dir", dir), "\n")
	options := join.Options{
		Server:  p.config().Host,
		Token:   token,
		CAFiles: []string{filepath.Join(dir, "certs", "server-ca.crt"), filepath.Join(dir, "certs", "client-ca.crt")},
		Name:    "board",
		Kubelet: filepath.Join(dir, "no-kubelet"),
		Timeout: time.Minute,
	}
	attempt := func(change func(*join.Options)) error {
		o := options
		change(&o)
		return join.Join(t.Context(), emptyMachine(t), o)
	}
	want := func(what string, err error, words ...string) {
		t.Helper()
		for _, word := range words {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%s: got %v, want %q in it", what, err, word)
			}
		}
	}
	want("a token of this cluster", attempt(func(*join.Options) {}), "--kubelet", "no-kubelet")
	options.Patience = time.Millisecond // the signature is there
	want("another CA", attempt(func(o *join.Options) { o.CAFiles = []string{filepath.Join(dir, "certs", "front-proxy-ca.crt")} }), "--ca-hash", "another hash")
	// cluster-info has this CA as well, but it did not sign the server's certificate.
	want("the CA of clients", attempt(func(o *join.Options) { o.CAFiles = []string{filepath.Join(dir, "certs", "client-ca.crt")} }), "--ca-hash")
	want("an unknown token", attempt(func(o *join.Options) { o.Token = "zzzzzz.0123456789abcdef" }), "does not know the token zzzzzz")
	want("another secret", attempt(func(o *join.Options) { o.Token = token[:7] + "0123456789abcdef" }), "another secret")

	karve(t, "token", "delete", "--data-dir", dir, token)
	eventually.Nil(t, "the end of the token", func() error {
		err := attempt(func(*join.Options) {})
		if err == nil || !strings.Contains(err.Error(), "does not know the token") && !strings.Contains(err.Error(), "does not accept it") {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}
