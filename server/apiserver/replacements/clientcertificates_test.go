package replacements

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	upstreamx509 "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
)

// certificateTest is upstream's client certificate authenticator behind the memory, with an
// authority that can be removed.
type certificateTest struct {
	*testing.T
	authority *x509.Certificate
	key       *ecdsa.PrivateKey
	roots     *x509.CertPool
	verified  int // calls of upstream
	memory    authenticator.Request
}

func newCertificateTest(t *testing.T) *certificateTest {
	c := &certificateTest{T: t, roots: x509.NewCertPool()}
	c.authority, c.key = c.make("authority", time.Hour, nil)
	c.roots.AddCert(c.authority)
	upstream := upstreamx509.NewDynamic(func() (x509.VerifyOptions, bool) {
		c.verified++
		options := upstreamx509.DefaultVerifyOptions()
		options.Roots = c.roots
		return options, true
	}, upstreamx509.CommonNameUserConversion)
	c.memory = rememberCertificates(upstream, headerrequest.StaticStringSlice{"X-Remote-User"})
	return c
}

// make issues a certificate, which is self-signed if signer is nil.
func (c *certificateTest) make(name string, valid time.Duration, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	c.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name, Organization: []string{"group of " + name}},
		NotBefore:    time.Now().Add(-time.Minute), NotAfter: time.Now().Add(valid),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	parent := c.authority
	if signer == nil {
		template.IsCA, template.BasicConstraintsValid = true, true
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		c.Fatal(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		c.Fatal(err)
	}
	return made, key
}

func (c *certificateTest) leaf(name string, valid time.Duration) *x509.Certificate {
	made, _ := c.make(name, valid, c.key)
	return made
}

// ask sends one request. It returns the user's name, or nothing if the request is not
// authenticated.
func (c *certificateTest) ask(leaf *x509.Certificate, headers ...string) string {
	r := &http.Request{Header: http.Header{}}
	if leaf != nil {
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, ok, err := c.memory.AuthenticateRequest(r)
	if !ok || err != nil {
		return ""
	}
	return response.User.GetName() + " in " + response.User.GetGroups()[0]
}

func (c *certificateTest) want(got, name string, verified int) {
	c.Helper()
	if name != "" {
		name += " in group of " + name
	}
	if got != name || c.verified != verified {
		c.Errorf("user is %q after %d verifications, want %q after %d", got, c.verified, name, verified)
	}
}

func TestClientCertificateIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCertificateTest(t)
		ann, bob := c.leaf("ann", time.Hour), c.leaf("bob", time.Hour)
		c.want(c.ask(ann), "ann", 1)
		c.want(c.ask(ann), "ann", 1)
		c.want(c.ask(ann, "Authorization", "Bearer x"), "ann", 1) // upstream's order: certificate, then token
		c.want(c.ask(bob), "bob", 2)
		c.want(c.ask(bob), "bob", 2)
		c.want(c.ask(ann), "ann", 2)
		c.want(c.ask(nil), "", 2)
		time.Sleep(certificateTrust)
		c.want(c.ask(ann), "ann", 3)
	})
}

func TestClientCertificateIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCertificateTest(t)
		short, ann := c.leaf("short", certificateTrust/2), c.leaf("ann", time.Hour)
		c.want(c.ask(short), "short", 1)
		time.Sleep(certificateTrust/2 + time.Nanosecond)
		c.want(c.ask(short), "", 2) // expired, though remembered for longer

		c.want(c.ask(ann), "ann", 3)
		c.roots = x509.NewCertPool() // the authority is removed from the file
		time.Sleep(certificateTrust)
		c.want(c.ask(ann), "", 4)
		c.want(c.ask(ann), "", 5) // a refusal is not remembered
	})
}

func TestClientCertificateOfAFrontProxy(t *testing.T) {
	c := newCertificateTest(t)
	proxy := c.leaf("proxy", time.Hour)
	c.want(c.ask(proxy), "proxy", 1)
	c.want(c.ask(proxy, "X-Remote-User", "ann"), "proxy", 2) // upstream decides on whose behalf it acts
	c.want(c.ask(proxy, "X-Remote-User", "bob"), "proxy", 3)
	c.want(c.ask(proxy), "proxy", 3)
}

// TestTokenBesideACertificate: if a token authenticates a request, its user is not remembered
// for the certificate in the same request.
func TestTokenBesideACertificate(t *testing.T) {
	c := newCertificateTest(t)
	for _, extra := range []map[string][]string{nil, {user.CredentialIDKey: {"JTI=1"}}, {user.CredentialIDKey: {"X509SHA256=00"}}} {
		calls := 0
		memory := rememberCertificates(authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			calls++
			return &authenticator.Response{User: &user.DefaultInfo{Name: "token", Extra: extra}}, true, nil
		}), nil)
		r := &http.Request{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.leaf("ann", time.Hour)}}}
		memory.AuthenticateRequest(r)
		memory.AuthenticateRequest(r)
		if calls != 2 {
			t.Errorf("response with %v was remembered: upstream was asked %d times, want 2", extra, calls)
		}
	}
}

func TestRememberedCertificatesAreBounded(t *testing.T) {
	memory := rememberCertificates(authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return nil, false, errors.New("not asked here")
	}), nil).(*certificateAuthenticator)
	for range 3 * trustedCertificates {
		memory.trust(&x509.Certificate{}, trustedCertificate{})
	}
	if n := len(memory.trusted); n > trustedCertificates {
		t.Errorf("%d certificates are remembered, want at most %d", n, trustedCertificates)
	}
}

// TestUpstreamNamesTheCertificate: upstream still marks the response of a certificate in the
// way that identifiedBy expects.
func TestUpstreamNamesTheCertificate(t *testing.T) {
	c := newCertificateTest(t)
	ann := c.leaf("ann", time.Hour)
	response, ok, err := upstreamx509.CommonNameUserConversion([]*x509.Certificate{ann})
	if !ok || err != nil || !identifiedBy(response, ann) {
		t.Errorf("upstream's response %+v, %v, %v is not taken for the certificate's", response, ok, err)
	}
	if identifiedBy(response, c.leaf("ann", time.Hour)) {
		t.Error("a response is taken for another certificate's")
	}
	if !slices.Equal(response.User.GetGroups(), ann.Subject.Organization) {
		t.Errorf("groups are %v, want %v", response.User.GetGroups(), ann.Subject.Organization)
	}
}
