package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Certificates that Karve makes carry a Netscape Comment, a registered extension. No
// verifier acts on it, and every tool prints it:
//
//	X509v3 Netscape Comment: karve issued 2026-11-21T05:21:17Z
//
// It distinguishes Karve's certificates, which are renewed, from a user's, which are never
// touched. It also says from when a lifetime counts, since NotBefore is long past
// (clock.go).
const markerPrefix = "karve issued "

var oidComment = asn1.ObjectIdentifier{2, 16, 840, 1, 113730, 1, 13}

func marker(issued time.Time) (pkix.Extension, error) {
	value, err := asn1.MarshalWithParams(markerPrefix+issued.Format(time.RFC3339), "ia5")
	return pkix.Extension{Id: oidComment, Value: value}, err
}

// marked reports whether this package made c, and when its lifetime began.
func marked(c *x509.Certificate) (issued time.Time, ours bool) {
	for _, e := range c.Extensions {
		if !e.Id.Equal(oidComment) {
			continue
		}
		var s string
		if _, err := asn1.Unmarshal(e.Value, &s); err != nil || !strings.HasPrefix(s, markerPrefix) {
			return time.Time{}, false
		}
		t, err := time.Parse(time.RFC3339, s[len(markerPrefix):])
		return t, err == nil
	}
	return time.Time{}, false
}

// newKey makes an ECDSA P-256 key and its PEM form.
func newKey() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// issueCA makes a self-signed certificate for key. With old, it takes everything but the
// dates from old. So what old signed stays valid under the new certificate, and the other
// way round.
func issueCA(e entry, key crypto.Signer, old *x509.Certificate, now time.Time) (*x509.Certificate, error) {
	issued := issueTime(now)
	t := &x509.Certificate{
		Subject:               pkix.Name{CommonName: caCommonName(e.name, now)},
		NotBefore:             notBefore,
		NotAfter:              issued.Add(e.life),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	if old != nil {
		t.RawSubject = old.RawSubject
		// The way to compute the identifier changes with Go versions, and OpenSSL takes
		// another identifier for another CA.
		t.SubjectKeyId = old.SubjectKeyId
	}
	return sign(t, t, key.Public(), key, issued)
}

// issueLeaf makes the certificate of e for pub, signed by ca.
func issueLeaf(e entry, pub crypto.PublicKey, sans SANs, ca *pair, now time.Time) (*x509.Certificate, error) {
	issued := issueTime(now)
	t := &x509.Certificate{
		Subject:               subject(e),
		NotBefore:             notBefore,
		NotAfter:              leafEnd(e, ca, now),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           e.usage,
		BasicConstraintsValid: true,
	}
	if _, ok := pub.(*rsa.PublicKey); ok {
		t.KeyUsage |= x509.KeyUsageKeyEncipherment
	}
	if e.withSAN {
		t.DNSNames, t.IPAddresses = sans.DNSNames, sans.IPs
	}
	return sign(t, ca.main, pub, ca.key, issued)
}

// leafEnd returns when a leaf of e issued now would expire: not after its CA.
func leafEnd(e entry, ca *pair, now time.Time) time.Time {
	end := issueTime(now).Add(e.life)
	if ca.main.NotAfter.Before(end) {
		end = ca.main.NotAfter
	}
	return end
}

func subject(e entry) pkix.Name {
	return pkix.Name{CommonName: e.cn, Organization: e.orgs}
}

func sign(t, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer, issued time.Time) (*x509.Certificate, error) {
	m, err := marker(issued)
	if err != nil {
		return nil, err
	}
	t.ExtraExtensions = []pkix.Extension{m}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, pub, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// stale says why the leaf p has to be issued again, or "". It ignores the age.
func stale(p, ca *pair, sans SANs) string {
	c := p.main
	switch {
	case !p.matches():
		return "it has another key"
	case !signedBy(c, ca.main):
		return fmt.Sprintf("%s did not sign it", ca.name)
	case c.Subject.CommonName != p.cn || !slices.Equal(c.Subject.Organization, subject(p.entry).Organization):
		return "the subject is not " + subject(p.entry).String()
	case !slices.Equal(c.ExtKeyUsage, p.usage):
		return "its key usage has changed"
	case !bytes.Equal(encodeCerts(p.certs[1:]), encodeCerts(ca.chain())):
		return fmt.Sprintf("the intermediate certificates of %s changed", ca.name)
	}
	if p.withSAN {
		return sansChanged(certSANs(c), sans)
	}
	return ""
}

func signedBy(c, ca *x509.Certificate) bool {
	return bytes.Equal(c.RawIssuer, ca.RawSubject) &&
		(len(c.AuthorityKeyId) == 0 || len(ca.SubjectKeyId) == 0 || bytes.Equal(c.AuthorityKeyId, ca.SubjectKeyId)) &&
		c.CheckSignatureFrom(ca) == nil
}
