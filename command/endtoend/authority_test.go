package endtoend

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
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority signs certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  any
	pem  []byte
}

// issued is a certificate in files.
type issued struct {
	certFile, keyFile string
	by                *authority
}

func (i issued) files() (cert, key string) { return i.certFile, i.keyFile }

func (i issued) pool() *x509.CertPool { return i.by.pool() }

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := new(authority)
	template := template("test authority", nil)
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, key := a.sign(t, template)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.key, a.pem = key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// loadAuthority reads PATH.crt and PATH.key.
func loadAuthority(path string) (*authority, error) {
	pair, err := tls.LoadX509KeyPair(path+".crt", path+".key")
	if err != nil {
		return nil, err
	}
	return &authority{cert: pair.Leaf, key: pair.PrivateKey}, nil
}

func template(cn string, groups []string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62)) // does not fail
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: cn, Organization: groups},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
	}
}

// issue makes a certificate for a server with these names, or for a client if
// there are none.
func (a *authority) issue(t *testing.T, cn string, groups []string, names ...string) issued {
	t.Helper()
	template := template(cn, groups)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	if len(names) == 0 {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, key := a.sign(t, template)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	i := issued{filepath.Join(dir, cn+".crt"), filepath.Join(dir, cn+".key"), a}
	for path, block := range map[string]*pem.Block{
		i.certFile: {Type: "CERTIFICATE", Bytes: der},
		i.keyFile:  {Type: "PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return i
}

// sign makes a key, and a certificate for it; by itself if it has no key yet.
func (a *authority) sign(t *testing.T, template *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	return der, key
}
