package endtoend

import (
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/karve-k8s/karve/certs"
)

var etcdLine = regexp.MustCompile(`serving the etcd API at (https?://[^ ,]+)`)

func (p *process) etcdURL() string {
	p.t.Helper()
	match := etcdLine.FindStringSubmatch(p.stderr.String())
	if match == nil {
		p.t.Fatal("the log does not say where the etcd API is")
	}
	return match[1]
}

// The etcd API is for those with its client's certificate.
func TestEtcdAPIAsksForACertificate(t *testing.T) {
	long(t)
	parallel(t)
	store := start(t, t.TempDir(), append(bare, "--etcd-listen=https://127.0.0.1:0")...)
	file := func(n certs.Name, ending string) string {
		return filepath.Join(store.dir, "certs", string(n)+ending)
	}
	endpoint := store.etcdURL()

	// Until 1.2, TLS tells the client in the handshake.
	shake := func(own ...tls.Certificate) (*x509.Certificate, error) {
		authority, err := os.ReadFile(file(certs.EtcdCA, ".crt"))
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(authority)
		u, _ := url.Parse(endpoint)
		c, err := tls.Dial("tcp", u.Host, &tls.Config{RootCAs: roots, Certificates: own, MaxVersion: tls.VersionTLS12})
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0], nil
	}
	pair := func(n certs.Name) tls.Certificate {
		c, err := tls.LoadX509KeyPair(file(n, ".crt"), file(n, ".key"))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	before, err := shake(pair(certs.EtcdClient))
	if err != nil {
		t.Fatalf("the client's certificate: %v", err)
	}
	if _, err := shake(); err == nil {
		t.Error("a client without a certificate was let in")
	}
	for _, n := range []certs.Name{certs.Admin, certs.EtcdServer, certs.KubeletClient} {
		if _, err := shake(pair(n)); err == nil {
			t.Errorf("a client with the certificate of %s was let in", n)
		}
	}
	karve(t, "certs", "renew", "--data-dir", store.dir, "etcd-server")
	after, err := shake(pair(certs.EtcdClient))
	if err != nil || after.SerialNumber.Cmp(before.SerialNumber) == 0 {
		t.Errorf("after a renewal: %v, and the same certificate", err)
	}
}
