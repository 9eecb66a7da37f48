package endtoend

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pubkeypin"

	"github.com/karve-k8s/karve/internal/eventually"
)

// A file of an authority may have an older one, and the authority's root. The key is the middle one's.
func TestChainsOfAuthorities(t *testing.T) {
	long(t)
	parallel(t)
	dir, old, root := t.TempDir(), newAuthority(t), newAuthority(t)
	put := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "certs", name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "certs"), 0o700); err != nil {
		t.Fatal(err)
	}
	signers := map[string]*x509.Certificate{}
	for _, name := range []string{"server-ca", "client-ca"} {
		middle := template("middle of "+name, nil)
		middle.IsCA, middle.BasicConstraintsValid, middle.KeyUsage = true, true, x509.KeyUsageCertSign
		der, key := root.sign(t, middle)
		keyDER, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		if signers[name], err = x509.ParseCertificate(der); err != nil {
			t.Fatal(err)
		}
		chain := append([]byte{}, old.pem...)
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
		put(name+".crt", append(chain, root.pem...))
		put(name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
	}
	p := start(t, dir, "--disable-scheduler")

	u, err := url.Parse(p.url)
	if err != nil {
		t.Fatal(err)
	}
	connection, err := (&tls.Dialer{Config: &tls.Config{RootCAs: root.pool()}}).DialContext(t.Context(), "tcp", u.Host)
	if err != nil {
		t.Fatalf("a client that trusts the root only: %v", err)
	}
	connection.Close()
	admin := client(t, p.config())
	eventually.Nil(t, "the ConfigMap with the root CA", func() error {
		roots, err := admin.CoreV1().ConfigMaps("default").Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
		if err == nil && !strings.Contains(roots.Data["ca.crt"], string(root.pem)) {
			t.Errorf("kube-root-ca.crt lacks the root: %s", roots.Data["ca.crt"])
		}
		return err
	})
	signed := kubeletServing(t, p, "node-1")
	if err := signed.CheckSignatureFrom(signers["server-ca"]); err != nil {
		t.Errorf("a kubelet's serving certificate: %v", err)
	}
	line := karve(t, "token", "create", "--print-install-command", "--data-dir", dir)
	for name, a := range map[string]*x509.Certificate{"the signer": signers["server-ca"], "the root": root.cert, "the older authority": old.cert} {
		if hash := pubkeypin.Hash(a); !strings.Contains(line, " --ca-hash "+hash) {
			t.Errorf("the line for nodes lacks the hash of %s, %s: %s", name, hash, line)
		}
	}
	if got := karve(t, "certs", "list", "-o", "json", "--data-dir", dir); !strings.Contains(got, "CN=middle of client-ca") {
		t.Errorf("karve certs list: got %s", got)
	}
	if got := karve(t, "certs", "renew", "--data-dir", dir, "serving"); got == "" {
		t.Error("karve certs renew says nothing")
	}
	p.stop()
	start(t, dir, "--disable-scheduler").stop()
}

// kubeletServing returns a serving certificate that the server has signed for the kubelet of a node.
func kubeletServing(t *testing.T, p *process, node string) *x509.Certificate {
	t.Helper()
	cert, _ := signed(t, client(t, p.config()), certificatesv1.KubeletServingSignerName, &pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		[]string{node}, certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth)
	all, err := certutil.ParseCertsPEM(cert)
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// signed requests a certificate, approves it, and returns it with its key.
func signed(t *testing.T, admin kubernetes.Interface, signer string, subject *pkix.Name, names []string, usages ...certificatesv1.KeyUsage) (cert, key []byte) {
	t.Helper()
	private, err1 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	request, err2 := certutil.MakeCSR(private, subject, names, []net.IP{})
	key, err3 := keyutil.MarshalPrivateKeyToPEM(private)
	requests := admin.CertificatesV1().CertificateSigningRequests()
	made, err4 := requests.Create(t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		Spec:       certificatesv1.CertificateSigningRequestSpec{Request: request, SignerName: signer, Usages: usages},
	}, metav1.CreateOptions{})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	made.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"}}
	if _, err := requests.UpdateApproval(t.Context(), made.Name, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually.Nil(t, "a certificate is signed", func() error {
		got, err := requests.Get(t.Context(), made.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if cert = got.Status.Certificate; len(cert) == 0 {
			return errors.New("it is not signed yet")
		}
		return nil
	})
	return cert, key
}
