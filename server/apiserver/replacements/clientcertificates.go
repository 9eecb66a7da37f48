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
	// certificateTrust is how long a verified client certificate is not verified again. So it
	// is also how long a client may continue after its authority has been removed from the
	// client CA file.
	certificateTrust = time.Second

	// trustedCertificates limits how many certificates are remembered.
	trustedCertificates = 1024
)

// A certificateAuthenticator remembers for a short time which user a client certificate
// identifies. Upstream verifies the certificate's signature for every request, even on the
// same connection. By then, the TLS handshake is complete, in which the client proves that it
// has the private key. server/apiserver/DESIGN.md explains why no request can be authenticated
// as another user.
type certificateAuthenticator struct {
	next authenticator.Request
	// proxied returns the headers in which a front proxy names a user other than the one of
	// its certificate.
	proxied headerrequest.StringSliceProvider

	mu      sync.RWMutex
	trusted map[*x509.Certificate]trustedCertificate // by the leaf certificate, which crypto/tls shares between connections
}

type trustedCertificate struct {
	response *authenticator.Response
	until    time.Time
}

// RememberClientCertificates makes a chain remember verified client certificates.
func RememberClientCertificates(info *genericapiserver.AuthenticationInfo) {
	var proxied headerrequest.StringSliceProvider
	if info.RequestHeaderConfig != nil {
		proxied = info.RequestHeaderConfig.UsernameHeaders
	}
	info.Authenticator = rememberCertificates(info.Authenticator, proxied)
}

// rememberCertificates puts the memory before next, which is upstream's union. There, a client
// certificate takes precedence over any token, and only a front proxy's headers take
// precedence over the certificate. If proxied is nil, there is no front proxy.
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

// isProxied reports whether the request may come from a front proxy.
func (a *certificateAuthenticator) isProxied(r *http.Request) bool {
	return a.proxied != nil && slices.ContainsFunc(a.proxied.Value(), func(name string) bool { return r.Header.Get(name) != "" })
}

// identifiedBy reports whether the certificate, rather than a token in the same request, led
// to the response. Upstream adds the certificate's hash to the response.
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
