package loopback

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/certs"
)

// Clients makes the clients of the parts that live in the API server's process. They call
// its handler and pass by none of its filters: the API server authenticates each by its own
// certificate or token, authorizes, audits and queues it as over a connection. A client
// has no rate limit.
type Clients struct {
	Server *Server
	Store  *certs.Store
	Host   string // the URL of the API server, which clients show
	// Connect makes clients that connect to Host, as upstream's do.
	Connect bool
}

// Config is a client with the certificate of identity. Its requests name component as the program that
// makes them, see [As].
func (c Clients) Config(component string, identity certs.Name) *rest.Config {
	if c.Connect {
		config := c.Anonymous(component)
		config.CertFile, config.KeyFile = c.Store.CertFile(identity), c.Store.KeyFile(identity)
		return config
	}
	pair := &clientCertificate{cert: c.Store.CertFile(identity), key: c.Store.KeyFile(identity), now: time.Now}
	return As(component, c.through(&Transport{Server: c.Server, Certificates: pair.chain}))
}

// Anonymous is a client without an identity, to which its user adds one.
func (c Clients) Anonymous(component string) *rest.Config {
	if c.Connect {
		// By this name the API server shows the certificate of the cluster's own authority,
		// also if the user has supplied another.
		tls := rest.TLSClientConfig{CAFile: c.Store.CertFile(certs.ServerCA), ServerName: "kubernetes"}
		return As(component, &rest.Config{Host: c.Host, TLSClientConfig: tls, QPS: -1})
	}
	return As(component, c.through(&Transport{Server: c.Server}))
}

// As changes config so that its requests name component as their program, and returns it. Upstream's
// components are programs of their own, so client-go takes the name from the command line, and the API
// server makes it the manager of the fields that a request sets. The rest of the User-Agent stays.
func As(component string, config *rest.Config) *rest.Config {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &named{component, next} })
	return config
}

// named replaces the name of the program in the User-Agent.
type named struct {
	component string
	next      http.RoundTripper
}

func (n *named) RoundTrip(r *http.Request) (*http.Response, error) {
	_, rest, _ := strings.Cut(r.UserAgent(), "/")
	own := *r
	own.Header = r.Header.Clone()
	own.Header.Set("User-Agent", n.component+"/"+rest)
	return n.next.RoundTrip(&own)
}

// WrappedRoundTripper is how client-go finds the transport below, for example to close idle connections.
func (n *named) WrappedRoundTripper() http.RoundTripper { return n.next }

func (c Clients) through(transport http.RoundTripper) *rest.Config {
	return &rest.Config{Host: c.Host, Transport: transport, QPS: -1, DisableCompression: true}
}

// clientCertificate is read again now and then, because certificates are renewed, and
// immediately when it has ended, which it does when the clock is set.
type clientCertificate struct {
	cert, key string // files
	now       func() time.Time

	mu     sync.Mutex
	loaded []*x509.Certificate
	read   time.Time
}

// certificateRefresh is how long a certificate is used before its file is read again: as
// long as in client-go (CertCallbackRefreshDuration).
const certificateRefresh = 5 * time.Minute

// chain reads the key as well: without the key, a client may not use the certificate.
func (c *clientCertificate) chain() ([]*x509.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now(); c.loaded != nil && now.Sub(c.read) < certificateRefresh && !now.After(c.loaded[0].NotAfter) {
		return c.loaded, nil
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return nil, fmt.Errorf("read client certificate: %w", err)
	}
	var chain []*x509.Certificate
	for _, der := range pair.Certificate {
		parsed, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("read client certificate %s: %w", c.cert, err)
		}
		chain = append(chain, parsed)
	}
	c.loaded, c.read = chain, c.now()
	return chain, nil
}
