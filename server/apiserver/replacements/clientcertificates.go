package replacements

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

const (
	// certificateTrust is how long a client certificate that has been verified
	// is not verified again, and so how long a client may go on after its
	// authority has been taken out of the client CA file.
	certificateTrust = time.Second

	// trustedCertificates bounds how many are remembered.
	trustedCertificates = 1024
)

// A certificateAuthenticator remembers for a moment which user a client certificate
// identifies. Upstream verifies the certificate's signature for every request, also on one
// connection. The TLS handshake, in which the client proves that it has the private key, has
// been completed by then. server/apiserver/DESIGN.md says why no request can be answered as
// another user.
type certificateAuthenticator struct {
	next authenticator.Request
	// proxied are the headers by which a front proxy names somebody else than
	// its certificate does.
	proxied headerrequest.StringSliceProvider

	mu      sync.RWMutex
	trusted map[*x509.Certificate]trustedCertificate // by the leaf, which crypto/tls shares between connections
}

type trustedCertificate struct {
	response *authenticator.Response
	until    time.Time
}

// RememberClientCertificates changes how a chain authenticates.
func RememberClientCertificates(info *genericapiserver.AuthenticationInfo) {
	var proxied headerrequest.StringSliceProvider
	if info.RequestHeaderConfig != nil {
		proxied = info.RequestHeaderConfig.UsernameHeaders
	}
	info.Authenticator = rememberCertificates(info.Authenticator, proxied)
}

// rememberCertificates puts the memory before next, which is upstream's union:
// there a client certificate counts before any token does, and only a front
// proxy's headers before it. proxied may be nil: no front proxy.
func rememberCertificates(next authenticator.Request, proxied headerrequest.StringSliceProvider) authenticator.Request {
	return &certificateAuthenticator{next: next, proxied: proxied, trusted: map[*x509.Certificate]trustedCertificate{}}
}

// AuthenticateRequest implements authenticator.Request.
func (a *certificateAuthenticator) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || a.isProxied(r) {
		return a.next.AuthenticateRequest(r)
	}
	leaf, now := r.TLS.PeerCertificates[0], time.Now()
	a.mu.RLock()
	known := a.trusted[leaf]
	a.mu.RUnlock()
	if now.Before(known.until) && !now.After(leaf.NotAfter) {
		return known.response, true, nil
	}
	response, ok, err := a.next.AuthenticateRequest(r)
	if ok && err == nil && identifiedBy(response, leaf) {
		a.trust(leaf, trustedCertificate{response, now.Add(certificateTrust)})
	}
	return response, ok, err
}

// isProxied tells whether the request may be a front proxy's.
func (a *certificateAuthenticator) isProxied(r *http.Request) bool {
	return a.proxied != nil && slices.ContainsFunc(a.proxied.Value(), func(name string) bool { return r.Header.Get(name) != "" })
}

// identifiedBy tells whether it was the certificate that made the response, and
// not a token which came along: upstream puts the certificate's hash into it.
func identifiedBy(response *authenticator.Response, leaf *x509.Certificate) bool {
	if response == nil || response.User == nil {
		return false
	}
	sum := sha256.Sum256(leaf.Raw)
	return slices.Equal(response.User.GetExtra()[user.CredentialIDKey], []string{"X509SHA256=" + hex.EncodeToString(sum[:])})
}

func (a *certificateAuthenticator) trust(leaf *x509.Certificate, t trustedCertificate) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.trusted) >= trustedCertificates {
		clear(a.trusted)
	}
	a.trusted[leaf] = t
}
