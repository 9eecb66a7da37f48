package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// serveWithLoopback applies the serving options, and makes a certificate and a token for the
// server's own clients. It is upstream's SecureServingOptionsWithLoopback with an ECDSA key,
// which takes almost no time to generate.
func serveWithLoopback(o *genericoptions.SecureServingOptions, c *genericapiserver.Config) error {
	if err := o.ApplyTo(&c.SecureServing); err != nil {
		return err
	}
	name := genericapiserver.LoopbackClientServerNameOverride
	cert, key, end, err := selfSigned(name)
	if err != nil {
		return fmt.Errorf("make the certificate for the server's own clients: %w", err)
	}
	shown, err := dynamiccertificates.NewStaticSNICertKeyContent("self-signed loopback", cert, key, name)
	if err != nil {
		return fmt.Errorf("make the certificate for the server's own clients: %w", err)
	}
	// It goes in front, so that no certificate of the user's takes over its name.
	c.SecureServing.SNICerts = append([]dynamiccertificates.SNICertKeyContentProvider{shown}, c.SecureServing.SNICerts...)
	if c.LoopbackClientConfig, err = c.SecureServing.NewLoopbackClientConfig(string(uuid.NewUUID()), cert); err != nil {
		return fmt.Errorf("configure the server's own clients: %w", err)
	}
	// As upstream, /livez fails when the certificate has expired.
	expired := healthz.NamedCheck("loopback-serving-certificate", func(*http.Request) error {
		if time.Now().After(end) {
			return genericoptions.LoopbackCertificateExpiredError{}
		}
		return nil
	})
	c.AddHealthzChecks(expired)
	c.AddLivezChecks(expired)
	return nil
}

// selfSigned returns a self-signed server certificate for name, and its key, as PEM. Each start makes a new one.
func selfSigned(name string) (cert, key []byte, end time.Time, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, end, err
	}
	// The clock may be set back.
	made, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: name, NotBefore: time.Now().Add(-time.Hour)}, private)
	if err != nil {
		return nil, nil, end, err
	}
	cert, err1 := certutil.EncodeCertificates(made)
	key, err2 := keyutil.MarshalPrivateKeyToPEM(private)
	return cert, key, made.NotAfter, errors.Join(err1, err2)
}
