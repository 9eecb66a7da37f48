package server_test

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/internal/eventually"
)

// These tests check the credentials that controllers hand out.

func (c *cluster) readFile(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestTokenSecretIsFilled(t *testing.T) {
	c := shared(t)
	ns := c.namespace(t)
	create(t, c.CoreV1().Secrets(ns), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}},
		Type:       corev1.SecretTypeServiceAccountToken,
	})
	var secret *corev1.Secret
	eventually.Nil(t, "the Secret has a token", func() (err error) {
		secret, err = c.CoreV1().Secrets(ns).Get(t.Context(), "token", metav1.GetOptions{})
		if err == nil && len(secret.Data[corev1.ServiceAccountTokenKey]) == 0 {
			err = errors.New("none yet")
		}
		return err
	})
	if got := string(secret.Data[corev1.ServiceAccountNamespaceKey]); got != ns {
		t.Errorf("namespace: got %s, want %s", got, ns)
	}
	if want := c.readFile(t, "certs/server-ca.crt"); !sameCertificates(secret.Data[corev1.ServiceAccountRootCAKey], want) {
		t.Errorf("ca.crt: got %s, want the server's CA", secret.Data[corev1.ServiceAccountRootCAKey])
	}
	config := rest.AnonymousClientConfig(c.admin)
	config.BearerToken = string(secret.Data[corev1.ServiceAccountTokenKey])
	user := clientFor(t, config)
	// The API server may know the Secret from before it had a token.
	eventually.Nil(t, "the token is accepted", func() error {
		_, err := user.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return err
	})
	if got, _ := whoami(t, user); got != "system:serviceaccount:"+ns+":default" {
		t.Errorf("the token's user: got %s", got)
	}
}

func sameCertificates(a, b []byte) bool {
	ablock, _ := pem.Decode(a)
	bblock, _ := pem.Decode(b)
	return ablock != nil && bblock != nil && bytes.Equal(ablock.Bytes, bblock.Bytes)
}

// bootstrapToken creates a token that kubeadm join could use.
func bootstrapToken(t *testing.T, c *cluster, id string) *rest.Config {
	t.Helper()
	const secret = "0123456789abcdef"
	create(t, c.CoreV1().Secrets("kube-system"), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
			"auth-extra-groups": "system:bootstrappers:test",
		},
	})
	config := rest.AnonymousClientConfig(c.admin)
	config.BearerToken = id + "." + secret
	return config
}

func TestBootstrapToken(t *testing.T) {
	c := shared(t)
	config := bootstrapToken(t, c, "aaaaaa")
	var name string
	var groups []string
	eventually.Nil(t, "the token authenticates", func() error {
		_, err := clientFor(t, config).Discovery().RESTClient().Get().AbsPath("/api/v1").DoRaw(t.Context())
		return err
	})
	name, groups = whoami(t, clientFor(t, config))
	if name != "system:bootstrap:aaaaaa" || !slices.Contains(groups, "system:bootstrappers:test") {
		t.Errorf("got %s of %v", name, groups)
	}

	eventually.Nil(t, "cluster-info is signed", func() error {
		info, err := c.CoreV1().ConfigMaps("kube-public").Get(t.Context(), "cluster-info", metav1.GetOptions{})
		if err == nil && strings.Count(info.Data["jws-kubeconfig-aaaaaa"], ".") != 2 {
			err = errors.New("no signature of the token's")
		}
		return err
	})
	// The token cleaner deletes a token that has expired.
	create(t, c.CoreV1().Secrets("kube-system"), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-bbbbbb"},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{"token-id": "bbbbbb", "token-secret": "0123456789abcdef", "expiration": "2020-01-01T00:00:00Z"},
	})
	eventually.Nil(t, "a token that has expired is removed", func() error {
		_, err := c.CoreV1().Secrets("kube-system").Get(t.Context(), "bootstrap-token-bbbbbb", metav1.GetOptions{})
		return wantNotFound(err)
	})
}

// requestCertificate requests a certificate as client and returns its key.
func requestCertificate(t *testing.T, client kubernetes.Interface, name, signer string, subject pkix.Name) []byte {
	t.Helper()
	key, keyPEM := newKey(t)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
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

// approve approves a certificate signing request, as an administrator does.
func approve(t *testing.T, c *cluster, name string) {
	t.Helper()
	requests := c.CertificatesV1().CertificateSigningRequests()
	request, err := requests.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test",
	})
	if _, err := requests.UpdateApproval(t.Context(), name, request, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}
