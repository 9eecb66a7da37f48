package loopback

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
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

// Config is a client with the certificate of identity.
func (c Clients) Config(identity certs.Name) *rest.Config {
	if c.Connect {
		config := c.Anonymous()
		config.CertFile, config.KeyFile = c.Store.CertFile(identity), c.Store.KeyFile(identity)
		return config
	}
	pair := &clientCertificate{cert: c.Store.CertFile(identity), key: c.Store.KeyFile(identity), now: time.Now}
	return c.through(&Transport{Server: c.Server, Certificates: pair.chain})
}

// Anonymous is a client without an identity, to which its user adds one.
func (c Clients) Anonymous() *rest.Config {
	if c.Connect {
		// By this name the API server shows the certificate of the cluster's own authority,
		// also if the user has supplied another.
		tls := rest.TLSClientConfig{CAFile: c.Store.CertFile(certs.ServerCA), ServerName: "kubernetes"}
		return &rest.Config{Host: c.Host, TLSClientConfig: tls, QPS: -1}
	}
	return c.through(&Transport{Server: c.Server})
}

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
