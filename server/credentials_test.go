package server_test

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/karve-k8s/karve/internal/eventually"
)

// These tests check the credentials that controllers hand out.

func (c *cluster) readFile(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(c.dir, name))
	fatal(t, err)
	return content
}

// requestCertificate requests a certificate as client and returns its key.
func requestCertificate(t *testing.T, client kubernetes.Interface, name, signer string, subject pkix.Name) []byte {
	t.Helper()
	key, keyPEM := newKey(t)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	fatal(t, err)
	create(t, client.CertificatesV1().CertificateSigningRequests(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: signer, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		},
	})
	return keyPEM
}

func (c *cluster) issued(t *testing.T, name string) []byte {
	t.Helper()
	var cert []byte
	eventually.Nil(t, "the certificate is issued", func() error {
		request, err := c.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && len(request.Status.Certificate) == 0 {
			err = errors.New("none yet")
		}
		if err == nil {
			cert = request.Status.Certificate
		}
		return err
	})
	return cert
}
