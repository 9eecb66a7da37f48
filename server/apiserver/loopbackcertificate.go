package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
)

// loopbackLife is how long the certificate for the server's own clients is valid. Each start
// makes a new one. As upstream, /livez fails when it has expired.
const loopbackLife = (3*365 + 1) * 24 * time.Hour

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

// selfSigned returns a self-signed server certificate for name, and its key, as PEM.
func selfSigned(name string) (cert, key []byte, end time.Time, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, end, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 63))
	if err != nil {
		return nil, nil, end, err
	}
	now := time.Now()
	end = now.Add(loopbackLife)
	t := &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)),
		Subject:      pkix.Name{CommonName: name},
		DNSNames:     []string{name},
		NotBefore:    now.Add(-time.Hour), // the clock may be set back
		NotAfter:     end,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},

		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, private.Public(), private)
	if err != nil {
		return nil, nil, end, err
	}
	encoded, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, nil, end, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded}), end, nil
}
