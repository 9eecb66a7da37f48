package tunnels

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/karve-k8s/karve/internal/eventually"
)

func TestConnectionsReachNodesPodsAndServices(t *testing.T) {
	w, own := newWorld(t), key(t)
	one, two := w.machine("10.0.0.1", own.PublicKey()), w.machine("10.0.0.2", own.PublicKey())
	w.kubelet("10.0.0.1")
	w.kubelet("10.0.0.2")
	for _, a := range []string{"10.0.0.1:10250", "10.244.2.7:8080", "10.96.0.9:443", "webhook.example:443"} {
		w.echo(a)
	}
	w.kubelet("10.0.0.1") // in the place of the echo
	tunnels := w.tunnels(w.config(own), node(1), node(2))
	await(t, tunnels, "n1", stateHealthy)
	await(t, tunnels, "n2", stateHealthy)
	for _, a := range []string{"10.244.2.7:8080", "10.96.0.9:443", "webhook.example:443"} {
		conn, err := connect(t, tunnels, a)
		if err != nil {
			t.Fatalf("%s: %v", a, err)
		}
		if err := says(conn, "hello "+a); err != nil {
			t.Fatalf("%s: %v", a, err)
		}
		if conn.RemoteAddr().String() != a {
			t.Errorf("the remote address is %v, want %s", conn.RemoteAddr(), a)
		}
	}
	if n := two.count("10.244.2.7:8080"); n != 1 {
		t.Errorf("%d connections to a Pod of n2 went through n2, want 1", n)
	}
	if n := one.count("10.0.0.2:10250"); n != 0 {
		t.Errorf("%d connections to the kubelet of n2 went through n1", n)
	}
	for _, want := range []string{`apiserver_ssh_tunnel_healthy{node="n1"} 1`, `apiserver_ssh_tunnel_dials_total{node="n2"} 1`} {
		if text := metricsText(t); !strings.Contains(text, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	tunnels.Remove("n1")
	eventually.True(t, "the metrics of a removed node are gone", func() bool { return !strings.Contains(metricsText(t), `node="n1"`) })
	if got := tunnels.Status(); len(got) != 1 || got[0].Node != "n2" {
		t.Errorf("after n1 is removed there are %+v", got)
	}
}

func (m *machine) count(address string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.forwarded[address]
}

func metricsText(t *testing.T) string {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			fmt.Fprintf(&b, "%s{%s} %v\n", f.GetName(), strings.Join(labels, ","), m.GetGauge().GetValue()+m.GetCounter().GetValue())
		}
	}
	return b.String()
}

func TestLoopbackIsDialledDirectly(t *testing.T) {
	w := newWorld(t)
	tunnels := w.tunnels(w.config(key(t)))
	dialled := errors.New("dialled directly")
	direct := func(address string) error {
		_, err := tunnels.Dial(func(_ ctx, _, _ string) (net.Conn, error) { return nil, dialled })(t.Context(), "tcp", address)
		return err
	}
	for _, a := range []string{"localhost:6443", "127.0.0.1:6443", "[::1]:6443"} {
		if err := direct(a); !errors.Is(err, dialled) {
			t.Errorf("%s: %v", a, err)
		}
	}
	wants(t, direct("10.0.0.1:10250"), ErrNoTunnel, "the cluster has no nodes")
}

func TestWrongKey(t *testing.T) {
	w, own := newWorld(t), key(t)
	m := w.machine("10.0.0.1", key(t).PublicKey())
	w.kubelet("10.0.0.1")
	tunnels := w.tunnels(w.config(own), node(1))
	await(t, tunnels, "n1", stateFailed)
	_, err := connect(t, tunnels, "10.0.0.1:10250")
	wants(t, err, ErrAuthentication, "n1", "10.0.0.1:22", "user karve", "karve ssh public-key")
	_, err = connect(t, tunnels, "10.96.0.1:443")
	wants(t, err, ErrNoTunnel, "n1", ErrAuthentication.Error())
	m.mu.Lock()
	m.authorized = own.PublicKey()
	m.mu.Unlock()
	await(t, tunnels, "n1", stateHealthy)
}

func TestChangedHostKey(t *testing.T) {
	w, own := newWorld(t), key(t)
	m := w.machine("10.0.0.1", own.PublicKey())
	w.kubelet("10.0.0.1")
	c := w.config(own)
	if err := os.WriteFile(c.HostKeys.Path, []byte("# pinned by Karve\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tunnels := w.tunnels(c, node(1))
	await(t, tunnels, "n1", stateHealthy)
	pinned, err := os.ReadFile(c.HostKeys.Path)
	if err != nil || !strings.HasPrefix(string(pinned), "# pinned by Karve\n10.0.0.1 ssh-ed25519 ") {
		t.Fatalf("known_hosts is %q, %v", pinned, err)
	}
	was := ssh.FingerprintSHA256(m.hostKeys[0].PublicKey())
	m.mu.Lock()
	m.hostKeys = []ssh.Signer{key(t)}
	is := ssh.FingerprintSHA256(m.hostKeys[0].PublicKey())
	m.mu.Unlock()
	m.kill()
	eventually.Nil(t, "the changed key is refused", func() error {
		_, err := tunnels.Dial(nil)(t.Context(), "tcp", "10.0.0.1:10250")
		if !errors.Is(err, ErrHostKey) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	_, err = connect(t, tunnels, "10.0.0.1:10250")
	if err == nil || !errors.Is(err, ErrHostKey) {
		// An attempt was just being made; its result is the same.
		await(t, tunnels, "n1", stateFailed)
		_, err = connect(t, tunnels, "10.0.0.1:10250")
	}
	wants(t, err, ErrHostKey, "n1", "10.0.0.1:22", "line 2 of "+c.HostKeys.Path, was, is, "karve ssh forget", "'10.0.0.1'")
	if err := c.HostKeys.Forget("10.0.0.9"); err == nil {
		t.Error("an address without a line is forgotten")
	}
	if err := c.HostKeys.Forget("10.0.0.1"); err != nil {
		t.Fatal(err)
	}
	await(t, tunnels, "n1", stateHealthy)
	if info, err := os.Stat(c.HostKeys.Path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("known_hosts: %v, %v", info.Mode(), err)
	}
}

func TestSilentNode(t *testing.T) {
	w, own := newWorld(t), key(t)
	w.machine("10.0.0.1", own.PublicKey())
	w.kubelet("10.0.0.1")
	w.echo("10.244.1.2:80")
	c := w.config(own)
	c.KeepAlive = 300 * time.Millisecond
	tunnels := w.tunnels(c, node(1))
	await(t, tunnels, "n1", stateHealthy)
	conn, err := connect(t, tunnels, "10.244.1.2:80")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		ended <- err
	}()
	w.vanish()
	wants(t, eventually.Receive(t, "the open connection ends", ended), ErrEnded, "n1", "has not answered for 300ms")
}

// A kubelet whose request for a serving certificate is not approved ends each handshake.
func TestKubeletWithoutCertificate(t *testing.T) {
	w, own := newWorld(t), key(t)
	w.machine("10.0.0.1", own.PublicKey())
	config := &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errors.New("none") }}
	w.listen("10.0.0.1:10250", func(conn net.Conn) { _ = tls.Server(conn, config).Handshake() })
	if s := await(t, w.tunnels(w.config(own), node(1)), "n1", stateUnhealthy); !strings.Contains(s.Problem, "kubectl certificate approve") {
		t.Errorf("the problem is %q", s.Problem)
	}
}

func TestUnhealthyKubelet(t *testing.T) {
	w, own := newWorld(t), key(t)
	one, two := w.machine("10.0.0.1", own.PublicKey()), w.machine("10.0.0.2", own.PublicKey())
	status := w.kubelet("10.0.0.1")
	w.kubelet("10.0.0.2").Store(http.StatusUnauthorized) // an answer, all the same
	w.echo("10.244.1.2:80")
	w.echo("10.0.0.1:9100")
	status.Store(http.StatusInternalServerError)
	c := w.config(own)
	c.Health = 300 * time.Millisecond
	tunnels := w.tunnels(c, node(1), node(2))
	if s := await(t, tunnels, "n1", stateUnhealthy); !strings.Contains(s.Problem, "the kubelet is not healthy: 500") {
		t.Errorf("the problem is %q", s.Problem)
	}
	await(t, tunnels, "n2", stateHealthy)
	for _, a := range []string{"10.244.1.2:80", "10.0.0.1:9100"} {
		conn, err := connect(t, tunnels, a)
		if err != nil {
			t.Fatal(err)
		}
		if err := says(conn, "hello"); err != nil {
			t.Fatal(err)
		}
	}
	if one.count("10.244.1.2:80") != 0 || two.count("10.244.1.2:80") != 1 {
		t.Error("the connection to the Pod did not go through the healthy node")
	}
	if one.count("10.0.0.1:9100") != 1 {
		t.Error("the connection to the node itself did not go through its own tunnel")
	}
	status.Store(http.StatusOK)
	await(t, tunnels, "n1", stateHealthy)
	if n := one.accepted.Load(); n != 1 {
		t.Errorf("%d SSH connections to a node whose kubelet was not healthy, want the first one only", n)
	}
}

func TestRefusals(t *testing.T) {
	w, own := newWorld(t), key(t)
	m := w.machine("10.0.0.1", own.PublicKey())
	w.kubelet("10.0.0.1")
	tunnels := w.tunnels(w.config(own), node(1), Node{Name: "bare"}, node(3))
	await(t, tunnels, "n1", stateHealthy)
	_, err := connect(t, tunnels, "10.244.1.2:80")
	wants(t, err, ErrDestination, "n1", "10.244.1.2:80", "Connection refused")
	m.mu.Lock()
	m.forbidden = true
	m.mu.Unlock()
	_, err = connect(t, tunnels, "10.244.1.2:80")
	wants(t, err, ErrForwarding, "n1", "10.0.0.1:22", "AllowTcpForwarding yes")
	if s := await(t, tunnels, "bare", stateFailed); !strings.Contains(s.Problem, "no address") {
		t.Errorf("the problem of a node without address is %q", s.Problem)
	}
	if s := await(t, tunnels, "n3", stateFailed); !strings.Contains(s.Problem, "no route to host") {
		t.Errorf("the problem of a node that is off is %q", s.Problem)
	}
}

func TestNodeThatComesBackIsTriedAtOnce(t *testing.T) {
	w, own := newWorld(t), key(t)
	c := w.config(own)
	c.Retry.Duration, c.Retry.Cap = time.Hour, time.Hour
	n := node(1)
	tunnels := w.tunnels(c, n)
	await(t, tunnels, "n1", stateFailed)
	w.machine("10.0.0.1", own.PublicKey())
	w.kubelet("10.0.0.1")
	n.Boot = "another"
	tunnels.Set(n)
	await(t, tunnels, "n1", stateHealthy)
	// A node with other addresses has another tunnel.
	w.machine("10.0.0.9", own.PublicKey())
	w.kubelet("10.0.0.9")
	n.Addresses = []string{"10.0.0.9"}
	tunnels.Set(n)
	eventually.True(t, "the tunnel leads to the new address", func() bool {
		s := await(t, tunnels, "n1", stateHealthy)
		return s.Address == "10.0.0.9:22"
	})
}

func TestConnectionsWaitForTheFirstTunnel(t *testing.T) {
	w, own := newWorld(t), key(t)
	w.machine("10.0.0.1", own.PublicKey())
	w.kubelet("10.0.0.1")
	w.echo("10.244.1.2:80")
	tunnels := New(w.config(own))
	t.Cleanup(tunnels.Close)
	done := make(chan error, 1)
	go func() {
		conn, err := tunnels.Dial(nil)(t.Context(), "tcp", "10.244.1.2:80")
		if err == nil {
			err = says(conn, "hello")
			conn.Close()
		}
		done <- err
	}()
	tunnels.Set(node(1))
	tunnels.Listed()
	if err := eventually.Receive(t, "the connection is made", done); err != nil {
		t.Error(err)
	}
}

func TestServerWithSeveralHostKeys(t *testing.T) {
	w, own := newWorld(t), key(t)
	m := w.machine("10.0.0.1", own.PublicKey())
	w.kubelet("10.0.0.1")
	tunnels := w.tunnels(w.config(own), node(1))
	await(t, tunnels, "n1", stateHealthy)
	// The client would prefer this key, which is not pinned.
	other, err := ReadKey(writeKey(t, filepath.Join(t.TempDir(), "ecdsa"), "ecdsa", nil))
	if err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	m.hostKeys = append([]ssh.Signer{other}, m.hostKeys...)
	m.mu.Unlock()
	m.kill()
	eventually.True(t, "it is connected again", func() bool { return m.accepted.Load() >= 2 })
	await(t, tunnels, "n1", stateHealthy)
	if n := m.accepted.Load(); n != 2 {
		t.Errorf("%d connections, want 2: a key of another type was taken for a changed one", n)
	}
}
