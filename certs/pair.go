package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// pair is what the disk holds, or will hold, of one row of the table.
type pair struct {
	entry
	certFile, keyFile string
	certs             []*x509.Certificate // as in the file; empty if there is none
	certPEM           []byte
	key               crypto.Signer // nil if there is none
	keyPEM            []byte
	keyMode           os.FileMode

	// These are about the certificate in use. It is certs[0], except that in a user's CA
	// file it may be another one.
	main   *x509.Certificate
	ours   bool      // made by this package
	issued time.Time // when its lifetime began
}

// certFile and keyFile return the paths in dir: NAME.crt and NAME.key.
func certFile(dir string, n Name) string { return filepath.Join(dir, string(n)+".crt") }
func keyFile(dir string, n Name) string  { return filepath.Join(dir, string(n)+".key") }

// loadPair reads the files of e in dir. A missing file is no error. A file that cannot be
// used is an error, and so is a CA whose key and certificate do not belong together.
func loadPair(dir string, e entry) (*pair, error) {
	p := &pair{entry: e, certFile: certFile(dir, e.name), keyFile: keyFile(dir, e.name)}
	var certPEM []byte
	var errs []error
	if e.kind != KindKey {
		var err error
		certPEM, _, err = readFile(p.certFile)
		if e.kind == KindCA && err == nil {
			err = refuseKey(p.certFile, certPEM)
		}
		errs = append(errs, err)
	}
	keyPEM, mode, err := readFile(p.keyFile)
	p.keyMode = mode
	errs = append(errs, err, p.parse(certPEM, keyPEM))
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return p, nil
}

// parse takes the contents of the two files; nil is a file that does not exist.
func (p *pair) parse(certPEM, keyPEM []byte) error {
	var errs []error
	var err error
	if certPEM != nil {
		p.certs, err = parseCerts(p.certFile, certPEM)
		p.certPEM = encodeCerts(p.certs)
		errs = append(errs, err)
	}
	if keyPEM != nil {
		p.keyPEM = keyPEM
		p.key, err = parseKey(p.keyFile, keyPEM)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil || len(p.certs) == 0 {
		return err
	}
	p.use(p.certs[0])
	if p.kind == KindCA {
		return p.pickSigner()
	}
	return nil
}

func (p *pair) use(c *x509.Certificate) {
	p.main = c
	p.issued, p.ours = marked(c)
	if !p.ours {
		p.issued = c.NotBefore
	}
}

// pickSigner finds the certificate of a CA file that goes with the key. Without
// a key it is the first one.
func (p *pair) pickSigner() error {
	if p.key != nil {
		found := false
		for _, c := range p.certs {
			if samePublic(c.PublicKey, p.key.Public()) {
				p.use(c)
				found = true
				break
			}
		}
		if !found {
			return fmt.Errorf("%w: %s is not the key of %s: put the two files of the same CA there", ErrMismatch, p.keyFile, p.certFile)
		}
	}
	if !p.main.BasicConstraintsValid || !p.main.IsCA || p.main.KeyUsage != 0 && p.main.KeyUsage&x509.KeyUsageCertSign == 0 {
		return fmt.Errorf("%w: %s is not the certificate of an authority (CA:TRUE, certificate signing): replace it by one that is", ErrCorrupt, p.certFile)
	}
	return nil
}

// due returns when the certificate is to be renewed: when less than a third of its lifetime
// is left. For a user's certificate, it is at most a year before the end.
func (p *pair) due() time.Time {
	due, year := dueAt(p.issued, p.main.NotAfter), p.main.NotAfter.Add(-365*day)
	if !p.ours && due.Before(year) {
		return year
	}
	return due
}

// matches reports whether certificate and key exist and belong together.
func (p *pair) matches() bool {
	return p.main != nil && p.key != nil && samePublic(p.main.PublicKey, p.key.Public())
}

// chain returns what a CA file contributes to the files of what it signs: the
// intermediates, signer first. The other side has the root.
func (p *pair) chain() []*x509.Certificate {
	var chain []*x509.Certificate
	add := func(c *x509.Certificate) {
		if !bytes.Equal(c.RawIssuer, c.RawSubject) {
			chain = append(chain, c)
		}
	}
	add(p.main)
	for _, c := range p.certs {
		if c != p.main {
			add(c)
		}
	}
	return chain
}

// readFile returns nil and no error for a file that does not exist.
func readFile(path string) ([]byte, os.FileMode, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, lerr := os.Lstat(path); lerr == nil {
			return nil, 0, fmt.Errorf("%s is a symbolic link to a file that is not there: bring the file back or remove the link", path)
		}
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read certificates: %w", err) // names the file
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, 0, corrupt(path, "is empty")
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, fmt.Errorf("read certificates: %w", err)
	}
	return data, info.Mode(), nil
}

func corrupt(path, why string) error {
	return fmt.Errorf("%w: %s %s: restore it from a backup; or remove it: a server with --cluster-token-file fetches it if the datastore has it, and the start of any other says how the cluster can go on without it", ErrCorrupt, path, why)
}

// parseCerts returns the certificates in data, at least one.
func parseCerts(path string, data []byte) ([]*x509.Certificate, error) {
	certs, err := certutil.ParseCertsPEM(data)
	if err != nil {
		return nil, corrupt(path, "holds no PEM certificates or damaged ones ("+err.Error()+")")
	}
	return certs, nil
}

// ReadAuthorities returns the text of a file with authorities, and these, of which there is at least one. Such a file is published.
func ReadAuthorities(path string) ([]byte, []*x509.Certificate, error) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = refuseKey(path, data)
	}
	if err != nil {
		return nil, nil, err
	}
	all, err := parseCerts(path, data)
	return data, all, err
}

// refuseKey returns an error if there is a private key in the file of an authority's certificate.
func refuseKey(path string, data []byte) error {
	if !bytes.Contains(data, []byte("PRIVATE KEY-----")) {
		return nil
	}
	return fmt.Errorf("%w: %s has a private key, and everybody gets to read this file: leave only certificates in it (openssl x509 -in FILE prints the first one)", ErrCorrupt, path)
}

// parseKey returns the first private key in data: PKCS#8, PKCS#1 or SEC 1. Its errors do not quote the key.
func parseKey(path string, data []byte) (crypto.Signer, error) {
	key, err := keyutil.ParsePrivateKeyPEM(data)
	signer, ok := key.(crypto.Signer)
	switch {
	case err != nil && bytes.Contains(data, []byte("ENCRYPTED")):
		return nil, fmt.Errorf("%w: %s is encrypted: decrypt it (openssl pkey -in FILE -out FILE), nobody is there to type its password", ErrCorrupt, path)
	case err != nil:
		return nil, corrupt(path, "holds no PEM private key, or a damaged one")
	case !ok:
		return nil, corrupt(path, "holds a key that cannot sign")
	}
	return signer, nil
}

func encodeCerts(certs []*x509.Certificate) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return out
}

func samePublic(a, b crypto.PublicKey) bool {
	eq, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && eq.Equal(b)
}

// keyType names the algorithm and size of a public key, as List shows it.
func keyType(pub crypto.PublicKey) string {
	switch k := pub.(type) {
	case *ecdsa.PublicKey:
		return "ECDSA " + k.Curve.Params().Name
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA %d", k.N.BitLen())
	case ed25519.PublicKey:
		return "Ed25519"
	}
	return fmt.Sprintf("%T", pub)
}
