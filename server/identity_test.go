package server_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// withCertificate returns a client configuration for the secure listener, with a certificate
// for subject that the client CA has signed.
func (c *cluster) withCertificate(t *testing.T, subject pkix.Name) *rest.Config {
	t.Helper()
	ca, err := tls.LoadX509KeyPair(filepath.Join(c.dir, "certs", "client-ca.crt"), filepath.Join(c.dir, "certs", "client-ca.key"))
	fatal(t, err)
	key, keyPEM := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: subject,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca.Leaf, key.Public(), ca.PrivateKey)
	fatal(t, err)
	return c.with(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyPEM)
}

// with returns a client configuration for the secure listener with a certificate.
func (c *cluster) with(cert, key []byte) *rest.Config {
	config := rest.AnonymousClientConfig(c.admin)
	config.CertData, config.KeyData = cert, key
	config.QPS = -1
	return config
}

func newKey(t *testing.T) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	fatal(t, err)
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// selfSigned returns a serving certificate for names and addresses, which is its own authority.
func selfSigned(t *testing.T, key *ecdsa.PrivateKey, name string, hosts ...string) []byte {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	fatal(t, err)
	return der
}
