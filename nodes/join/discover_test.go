package join

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pubkeypin"

	"github.com/karve-k8s/karve/nodes/join/ask"
)

// wantError checks that an error is one line that has some words, and no token.
func wantError(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", words)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("got %q, want %q in it", err, word)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("got several lines: %q", err)
	}
	if strings.Contains(err.Error(), "0123456789abcdef") {
		t.Errorf("the token's secret is in %q", err)
	}
}

func optionsFor(s *testServer) Options {
	return Options{Server: s.url, Token: goodToken, CAHashes: []string{s.hash}, Name: "board", Patience: time.Millisecond}
}

func complete(t *testing.T, o Options) Options {
	t.Helper()
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	return o
}

func discover(t *testing.T, o Options) (*ask.Cluster, error) {
	o = complete(t, o)
	return o.questions().Discover(t.Context())
}

func free(t *testing.T, c *ask.Cluster, m *testMachine, name string) error {
	return c.Free(t.Context(), name, m.machineID(), m.hasAddress)
}

func TestDiscover(t *testing.T) {
	t.Parallel()
	s := newServer(t, "127.0.0.1")
	client := newCA(t, "client-ca")
	bundle := append(append([]byte{}, s.ca.pem...), client.pem...)
	s.sign(t, goodToken, bundle)
	o := optionsFor(s)
	o.CAHashes = append(o.CAHashes, pubkeypin.Hash(client.cert))
	c, err := discover(t, o)
	if err != nil {
		t.Fatal(err)
	}
	if string(c.CA) != string(bundle) {
		t.Error("the bundle is not that of cluster-info")
	}
	if c.Version.String() != "1.37.2+karve.1" || c.PodSubnet != "10.200.0.0/16" || c.Kubelet["clusterDomain"] != "cluster.local" {
		t.Errorf("got version %s, range %q, kubelet %v", c.Version, c.PodSubnet, c.Kubelet)
	}
	for _, auth := range s.seenAuth {
		if auth != "" {
			t.Error("the token was sent before the server was verified")
		}
	}
}

func TestDiscoverRefuses(t *testing.T) {
	t.Parallel()
	other := newCA(t, "other-ca")
	for _, tc := range []struct {
		name   string
		host   string
		change func(*testing.T, *testServer, *Options)
		want   []string
	}{
		{"nothing listens", "", func(t *testing.T, s *testServer, o *Options) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			l.Close()
			o.Server = "https://" + l.Addr().String()
		}, []string{"--server https://127.0.0.1:", "no answer", "connection refused", "firewall"}},
		{"http", "", func(t *testing.T, s *testServer, o *Options) {
			plain := httptest.NewServer(http.NotFoundHandler())
			t.Cleanup(plain.Close)
			o.Server = strings.Replace(plain.URL, "http:", "https:", 1)
		}, []string{"it speaks http, not https", "secure port"}},
		{"something else", "", func(t *testing.T, s *testServer, o *Options) {
			web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }))
			t.Cleanup(web.Close)
			o.Server = web.URL
		}, []string{"it is not a Kubernetes API server"}},
		{"not prepared", "", func(_ *testing.T, s *testServer, _ *Options) { s.info = nil }, []string{"no ConfigMap cluster-info", "upgrade the server"}},
		{"no anonymous requests", "", func(_ *testing.T, s *testServer, _ *Options) { s.status = 401 }, []string{"anonymous", "--anonymous-auth"}},
		{"unknown token", "", func(t *testing.T, s *testServer, _ *Options) { s.sign(t, "fedcba.fedcba9876543210", s.ca.pem) },
			[]string{"does not know the token abcdef", "expired", "karve token create"}},
		{"another secret", "", func(t *testing.T, s *testServer, _ *Options) { s.sign(t, "abcdef.fedcba9876543210", s.ca.pem) },
			[]string{"another secret", "karve token create"}},
		{"wrong hash", "", func(_ *testing.T, _ *testServer, o *Options) { o.CAHashes = []string{pubkeypin.Hash(other.cert)} },
			[]string{"--ca-hash " + pubkeypin.Hash(other.cert), "another hash", "pretends"}},
		{"a CA that somebody with the token added", "", func(t *testing.T, s *testServer, o *Options) {
			s.sign(t, goodToken, append(append([]byte{}, s.ca.pem...), other.pem...))
			o.CAHashes = []string{pubkeypin.Hash(other.cert)}
		}, []string{"--ca-hash", "did not sign the certificate"}},
		{"another name", "board.example", func(*testing.T, *testServer, *Options) {}, []string{"not valid for that name", "--tls-san 127.0.0.1"}},
		{"another cluster-info when verified", "", func(t *testing.T, s *testServer, _ *Options) {
			s.second = signed(t, "https://evil.example:6443", goodToken, s.ca.pem)
		}, []string{"cluster-info is another one"}},
		{"clock behind", "", func(_ *testing.T, s *testServer, _ *Options) { s.off = 3*time.Hour + 30*time.Second }, []string{"clock is 3h0m", "behind", "timedatectl"}},
		{"clock ahead", "", func(_ *testing.T, s *testServer, _ *Options) { s.off = -10 * time.Minute }, []string{"clock is 10m", "ahead of", "timedatectl"}},
		{"token for signing only", "", func(_ *testing.T, s *testServer, _ *Options) { s.refused = true }, []string{"does not accept it for authentication", "usage"}},
		{"may not ask", "", func(_ *testing.T, s *testServer, _ *Options) { s.denied[""] = true }, []string{"may not create certificatesigningrequests", "upgrade the server"}},
		{"is not answered", "", func(_ *testing.T, s *testServer, _ *Options) { s.denied["nodeclient"] = true }, []string{"certificatesigningrequests/nodeclient"}},
		{"no kubelet-config", "", func(_ *testing.T, s *testServer, _ *Options) { delete(s.config, "kubelet-config/kubelet") }, []string{"kubelet-config", "upgrade the server"}},
		{"broken kubelet-config", "", func(_ *testing.T, s *testServer, _ *Options) { s.config["kubelet-config/kubelet"] = "- 1" }, []string{"no KubeletConfiguration", "repair"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			host := tc.host
			if host == "" {
				host = "127.0.0.1"
			}
			s := newServer(t, host)
			o := optionsFor(s)
			tc.change(t, s, &o)
			_, err := discover(t, o)
			wantError(t, err, tc.want...)
		})
	}
}

func TestTokenMayBeNew(t *testing.T) {
	t.Parallel()
	s := newServer(t, "127.0.0.1")
	s.second = s.info // signed after the first question
	s.sign(t, "fedcba.fedcba9876543210", s.ca.pem)
	o := optionsFor(s)
	o.Patience = time.Hour
	if _, err := discover(t, o); err != nil {
		t.Error(err)
	}
}

func TestCAFile(t *testing.T) {
	t.Parallel()
	s := newServer(t, "127.0.0.1")
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, s.ca.pem, 0o644); err != nil {
		t.Fatal(err)
	}
	o := optionsFor(s)
	o.CAHashes, o.CAFiles = nil, []string{file}
	if _, err := discover(t, o); err != nil {
		t.Error(err)
	}
	o.CAFiles[0] = file + ".missing"
	wantError(t, o.complete(), "--ca-file", "ca.crt.missing")
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	hash := "sha256:" + strings.Repeat("a", 64)
	good := Options{Server: "https://board.example", Token: goodToken, CAHashes: []string{hash}, Name: "n"}
	if o := complete(t, good); o.Server != "https://board.example:6443" {
		t.Errorf("got %s, want the usual port", o.Server)
	}
	for _, tc := range []struct {
		change func(*Options)
		want   string
	}{
		{func(o *Options) { o.Server = "" }, "--server is missing"},
		{func(o *Options) { o.Server = "http://board.example:8080" }, "need https"},
		{func(o *Options) { o.Server = "board.example:6443" }, "want https://HOST:PORT"},
		{func(o *Options) { o.Server = "https://board.example/path" }, "want https://HOST:PORT"},
		{func(o *Options) { o.Token = "" }, "--token is missing"},
		{func(o *Options) { o.Token = "0123456789abcdef" }, "want six characters"},
		{func(o *Options) { o.CAHashes = nil }, "--ca-hash is missing"},
		{func(o *Options) { o.CAHashes = []string{"sha256:abc"} }, "64 hexadecimal digits"},
		{func(o *Options) { o.Name = "Board_1" }, "--node-name"},
		{func(o *Options) { o.IP = "board" }, "--node-ip"},
		{func(o *Options) { o.Labels = "disk" }, "--node-labels"},
		{func(o *Options) { o.Labels = "node-role.kubernetes.io/gpu=" }, "kubectl label node n"},
		{func(o *Options) { o.Taints = "gpu=yes" }, "--node-taints"},
		{func(o *Options) { o.Taints = "gpu=yes:Never" }, "PreferNoSchedule"},
		{func(o *Options) { o.Taints = "gpu:NoSchedule-" }, "--node-taints"},
		{func(o *Options) { o.PodCIDR = "10.1.1.1/24" }, "--pod-cidr"},
		{func(o *Options) { o.PodCIDR = "10.1.0.0/24,10.2.0.0/24" }, "one network of each family"},
		{func(o *Options) { o.PodCIDR, o.NoNetwork = "10.1.0.0/24", true }, "exclude each other"},
		{func(o *Options) { o.KubeletURL = "http://mirror.example" }, "--kubelet-sha256"},
		{func(o *Options) { o.KubeletURL = "mirror" }, "--kubelet-url"},
		{func(o *Options) { o.KubeletSHA256 = "abc" }, "--kubelet-sha256"},
	} {
		o := good
		tc.change(&o)
		wantError(t, o.complete(), tc.want)
	}
	err := (&Options{Name: "n"}).complete()
	for _, missing := range []string{"--server", "--token", "--ca-hash"} {
		if err == nil || !strings.Contains(err.Error(), missing+" is missing") {
			t.Errorf("got %v, want every mistake at once", err)
		}
	}
}

func TestNameIsFree(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, tc := range []struct {
		name   string
		change func(*corev1.Node)
		free   bool
	}{
		{"another machine", func(n *corev1.Node) { n.Status.NodeInfo.MachineID = "other" }, false},
		{"this machine, stopped", func(n *corev1.Node) { n.Status.NodeInfo.MachineID = "id-of-board" }, true},
		{"this machine, just stopped", func(n *corev1.Node) { n.Status.NodeInfo.MachineID = "id-of-board"; ready(n) }, true},
		{"a copy of its card", func(n *corev1.Node) {
			n.Status.NodeInfo.MachineID = "id-of-board"
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.99"}}
			ready(n)
		}, false},
		{"a Node that never reported", func(*corev1.Node) {}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newServer(t, "127.0.0.1")
			s.setNode("board", func(n *corev1.Node) {
				n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
				tc.change(n)
			})
			c, err := discover(t, optionsFor(s))
			if err != nil {
				t.Fatal(err)
			}
			if err := free(t, c, m, "elsewhere"); err != nil {
				t.Error(err)
			}
			err = free(t, c, m, "board")
			if tc.free && err != nil {
				t.Error(err)
			} else if !tc.free {
				wantError(t, err, "--node-name board", "choose another name", "delete node board")
			}
		})
	}
}

func TestUnauthorizedIsNotATimeout(t *testing.T) {
	err := ask.Explain("https://board:6443", apierrors.NewUnauthorized("Unauthorized"))
	if wantError(t, err, "does not accept the credentials", "karve token create", "Pods keep running"); strings.Contains(err.Error(), "firewall") {
		t.Errorf("a server that answered is looked for behind a firewall: %v", err)
	}
}
