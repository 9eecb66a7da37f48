package server

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/server/loopback"
)

// inProcess makes the clients of the parts that live in the API server's
// process. They call its handler, past no filter of it: each is authenticated
// by its own certificate or token, authorized, audited and queued as over a
// connection. None has a rate limit.
type inProcess struct {
	server *loopback.Server
	store  *certs.Store
	host   string
}

func (s *controlPlane) clients() inProcess { return inProcess{s.loopback, s.certs, s.url()} }

// config is a client with the certificate of identity.
func (p inProcess) config(identity certs.Name) *rest.Config {
	pair := &clientCertificate{cert: p.store.CertFile(identity), key: p.store.KeyFile(identity), now: time.Now}
	return p.through(&loopback.Transport{Server: p.server, Certificates: pair.chain})
}

// anonymous is a client that has yet to say who it is.
func (p inProcess) anonymous() *rest.Config {
	return p.through(&loopback.Transport{Server: p.server})
}

func (p inProcess) through(transport http.RoundTripper) *rest.Config {
	return &rest.Config{Host: p.host, Transport: transport, QPS: -1, DisableCompression: true}
}

// clientCertificate is read again now and then, because it is renewed; at once when
// it has ended, which it does when the clock is set.
type clientCertificate struct {
	cert, key string // files
	now       func() time.Time

	mu     sync.Mutex
	loaded []*x509.Certificate
	read   time.Time
}

// certificateRefresh is how long a certificate is used without a look at its
// file: as long as client-go does (CertCallbackRefreshDuration).
const certificateRefresh = 5 * time.Minute

// chain reads the key as well: a client is whom it has the key of.
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
