package endtoend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/internal/eventually"
)

func hostPort(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// shown is the certificate that the secure listener shows who asks for name;
// it must be signed by an authority in roots, unless that is nil.
func shown(t *testing.T, p *process, name string, roots *x509.CertPool) (*x509.Certificate, error) {
	t.Helper()
	c, err := tls.Dial("tcp", hostPort(t, p.url), &tls.Config{ServerName: name, RootCAs: roots, InsecureSkipVerify: roots == nil})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0], nil
}

func serialOf(t *testing.T, p *process, name string) string {
	t.Helper()
	cert, err := shown(t, p, name, nil)
	if err != nil {
		t.Fatal(err)
	}
	return cert.SerialNumber.String()
}

// pool has the authority which the admin's kubeconfig trusts.
func (p *process) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(p.config().CAData) {
		p.t.Fatal("the kubeconfig has no authority")
	}
	return pool
}

func TestListeners(t *testing.T) {
	parallel(t)
	sni := newAuthority(t).issue(t, "sni", nil, "karve.example")
	p := start(t, t.TempDir(), append(bare, "--tls-sni-cert-key", sni.certFile+","+sni.keyFile, "--tls-san", "board.lan,192.0.2.77")...)

	t.Run("TLS versions", func(t *testing.T) {
		for v := uint16(tls.VersionTLS10); v <= tls.VersionTLS13; v++ {
			c, err := tls.Dial("tcp", hostPort(t, p.url), &tls.Config{MinVersion: v, MaxVersion: v, RootCAs: p.pool()})
			if err == nil {
				c.Close()
			}
			if got, want := err == nil, v >= tls.VersionTLS12; got != want {
				t.Errorf("%s: got %v, %v; want %v", tls.VersionName(v), got, err, want)
			}
			if v < tls.VersionTLS12 && !strings.Contains(fmt.Sprint(err), "remote error: tls: protocol version not supported") {
				t.Errorf("%s: got %v, want it refused by the server", tls.VersionName(v), err)
			}
		}
	})
	t.Run("names", func(t *testing.T) {
		for _, name := range []string{"localhost", "127.0.0.1", "::1", "kubernetes.default.svc", "10.96.0.1", "board.lan", "192.0.2.77"} {
			if _, err := shown(t, p, name, p.pool()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := shown(t, p, "elsewhere.example", p.pool()); err == nil {
			t.Error("elsewhere.example: the certificate has that name, want it not to")
		}
	})
	t.Run("SNI", func(t *testing.T) {
		if cert, err := shown(t, p, "karve.example", sni.pool()); err != nil || cert.Subject.CommonName != "sni" {
			t.Errorf("karve.example: got %v, %v; want the certificate of --tls-sni-cert-key", cert, err)
		}
		if cert, err := shown(t, p, "localhost", p.pool()); err != nil {
			t.Errorf("localhost: got %v, %v; want karve's own certificate", cert, err)
		}
	})
	t.Run("identities", func(t *testing.T) { identities(t, p) })
}

// identities asks for something that only administrators may see.
func identities(t *testing.T, p *process) {
	anonymous := rest.AnonymousClientConfig(p.config())
	withToken := rest.CopyConfig(anonymous)
	withToken.BearerToken = "nonsense"
	// The cluster's authority for clients knows this user; nobody else does.
	ours, err := loadAuthority(filepath.Join(p.dir, "certs", "client-ca"))
	if err != nil {
		t.Fatal(err)
	}
	stranger := rest.CopyConfig(anonymous)
	stranger.CertFile, stranger.KeyFile = ours.issue(t, "stranger", []string{"strangers"}).files()
	foreign := rest.CopyConfig(anonymous)
	foreign.CertFile, foreign.KeyFile = newAuthority(t).issue(t, "kubernetes-admin", []string{"system:masters"}).files()

	for _, tc := range []struct {
		who    string
		config *rest.Config
		want   func(error) bool
		words  string
	}{
		{"the admin", p.config(), func(err error) bool { return err == nil }, ""},
		{"nobody", anonymous, apierrors.IsForbidden, `User "system:anonymous" cannot list resource "secrets"`},
		{"a wrong token", withToken, apierrors.IsUnauthorized, "Unauthorized"},
		{"an unknown user's certificate", stranger, apierrors.IsForbidden, `User "stranger" cannot list resource "secrets"`},
		{"an admin's certificate of another authority", foreign, apierrors.IsUnauthorized, "Unauthorized"},
	} {
		_, err := client(t, tc.config).CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
		if !tc.want(err) || !strings.Contains(fmt.Sprint(err), tc.words) {
			t.Errorf("%s lists secrets: got %v, want %q", tc.who, err, tc.words)
		}
	}
	if _, err := client(t, anonymous).Discovery().ServerVersion(); err != nil {
		t.Errorf("nobody asks for the version, as upstream allows: %v", err)
	}
}

// TestUserCertificate has a serving certificate that the user brings and
// replaces while the server runs, and controllers which know nothing of it.
func TestUserCertificate(t *testing.T) {
	long(t)
	parallel(t)
	users := newAuthority(t)
	first := users.issue(t, "first", nil, "cluster.example", "127.0.0.1")
	p := start(t, t.TempDir(), "--tls-cert-file", first.certFile, "--tls-private-key-file", first.keyFile)

	for _, name := range []string{"cluster.example", "127.0.0.1"} {
		if cert, err := shown(t, p, name, users.pool()); err != nil || cert.Subject.CommonName != "first" {
			t.Fatalf("%s: got %v, %v; want the user's certificate", name, cert, err)
		}
	}
	if _, err := shown(t, p, "localhost", p.pool()); err != nil {
		t.Errorf("localhost: got %v, want karve's own certificate, by which the cluster's clients go on", err)
	}
	core := client(t, p.config()).CoreV1() // by the kubeconfig
	eventually.Nil(t, "the controllers to work", func() error {
		_, err := core.ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})

	// A client that trusts the user's authority only, and its one connection.
	var dialled atomic.Int32
	config := rest.CopyConfig(p.config())
	config.Host, config.ServerName, config.CAData = p.url, "cluster.example", users.pem
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialled.Add(1)
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	open := client(t, config).CoreV1().Namespaces()
	watch, err := open.Watch(within(t, patience), metav1.ListOptions{FieldSelector: "metadata.name=after-reload"})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()

	second := users.issue(t, "second", nil, "cluster.example", "127.0.0.1")
	for from, to := range map[string]string{second.certFile: first.certFile, second.keyFile: first.keyFile} {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	eventually.Nil(t, "the new certificate", func() error {
		cert, err := shown(t, p, "cluster.example", users.pool())
		if err == nil && cert.Subject.CommonName != "second" {
			err = fmt.Errorf("it still is %s", cert.Subject.CommonName)
		}
		return err
	})
	name := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "after-reload"}}
	if _, err := open.Create(t.Context(), name, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if event, ok := <-watch.ResultChan(); !ok || event.Type != "ADDED" {
		t.Errorf("the watch of before: got %v, open %v; want ADDED", event, ok)
	}
	if got := dialled.Load(); got != 1 {
		t.Errorf("the client dialled %d times, want its first connection to last", got)
	}
}

// answer is a response that has been read.
type answer struct {
	code  int
	proto string
	body  string
}

func get(c *http.Client, address string, headers ...string) (answer, error) {
	r, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		return answer{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		if r.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	return do(c, r)
}
