package server_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/karve-k8s/karve/server"
)

// shownTo returns the certificate that a client gets if it asks for name.
func (c *cluster) shownTo(t *testing.T, name string) *x509.Certificate {
	t.Helper()
	u, err := url.Parse(c.URL)
	fatal(t, err)
	// The test checks the certificate below, so the client does not verify it.
	conn, err := tls.Dial("tcp", u.Host, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	fatal(t, err)
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0]
}

// tlsTrust is the authority of the serving certificate.
func tlsTrust(c *cluster) (*x509.CertPool, error) {
	ca, err := os.ReadFile(filepath.Join(c.dir, "certs", "server-ca.crt"))
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		err = errors.Join(err, errors.New("no CA in server-ca.crt"))
	}
	return pool, err
}

// trustedFor checks that clients that trust the cluster's CA can reach the server under each
// name or address.
func trustedFor(t *testing.T, c *cluster, names ...string) {
	t.Helper()
	roots, err := tlsTrust(c)
	fatal(t, err)
	cert := c.shownTo(t, "localhost")
	for _, name := range names {
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Errorf("serving certificate: %v", err)
		}
	}
}

func TestInsecureListenerAndHTTP2CanBeDisabled(t *testing.T) {
	c := start(t, func(config *server.Config) { config.DisableInsecure, config.DisableHTTP2 = true, true })
	if c.InsecureURL != "" {
		t.Errorf("InsecureURL: got %s, want none", c.InsecureURL)
	}
	answer, err := httpClient(t, c.admin).Get(c.URL + "/version")
	fatal(t, err)
	answer.Body.Close()
	if answer.ProtoMajor != 1 {
		t.Errorf("with HTTP/2 disabled: got %s, want HTTP/1.1", answer.Proto)
	}
}
