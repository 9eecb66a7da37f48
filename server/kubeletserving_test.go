package server_test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/controllers/replacements"
)

// servingRequest is what a kubelet with serverTLSBootstrap asks for.
type servingRequest struct {
	name string
	cn   string
	dns  []string
	ips  []string
}

func (r servingRequest) create(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	key, _ := newKey(t)
	request := &x509.CertificateRequest{Subject: pkix.Name{CommonName: r.cn, Organization: []string{"system:nodes"}}, DNSNames: r.dns}
	for _, ip := range r.ips {
		request.IPAddresses = append(request.IPAddresses, net.ParseIP(ip))
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, request, key)
	if err != nil {
		t.Fatal(err)
	}
	create(t, client.CertificatesV1().CertificateSigningRequests(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: r.name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeletServingSignerName, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		},
	})
}

// report makes a kubelet report its addresses, as a kubelet does.
func report(t *testing.T, kubelet kubernetes.Interface, node string, addresses ...string) {
	t.Helper()
	status := corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: node}}}
	for _, a := range addresses {
		status.Addresses = append(status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	eventually.Nil(t, "the status of "+node, func() error {
		n, err := kubelet.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.Status.Addresses = status.Addresses
		_, err = kubelet.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
		return err
	})
}

// unapproved fails the test if a request has a condition or a certificate.
func (c *cluster) unapproved(t *testing.T, name string) {
	t.Helper()
	csr, err := c.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(csr.Status.Conditions) > 0 || len(csr.Status.Certificate) > 0 {
		t.Errorf("request %s: got %+v, want no approval", name, csr.Status)
	}
}

// refused waits for the Event that says why a request is not approved.
func (c *cluster) refused(t *testing.T, name, want string) {
	t.Helper()
	eventually.Nil(t, "an Event for "+name+" that says "+want, func() error {
		events, err := c.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=NotApproved,involvedObject.name=" + name})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if strings.Contains(e.Message, want) {
				return nil
			}
		}
		return fmt.Errorf("got %d Events of this reason", len(events.Items))
	})
	if log := c.log.String(); !strings.Contains(log, name) {
		t.Errorf("log: got\n%s\nwant a line about %s", log, name)
	}
	c.unapproved(t, name)
}

// No machine that runs tests has the addresses of the Nodes here, which are of a range for benchmarks
// of networks: the approver reserves those of its machine.
func TestServingCertificatesOfKubelets(t *testing.T) {
	pair := func(name string, dns ...string) string { // for SNI
		key, keyPEM := newKey(t)
		cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: selfSigned(t, key, name, dns...)})
		return writeFile(t, "sni.crt", string(cert)) + "," + writeFile(t, "sni.key", string(keyPEM))
	}
	c := start(t, func(config *server.Config) {
		config.ApproveKubeletServing = true
		config.EtcdListen = "https://127.0.0.1:0" // other servers may use the datastore
		config.AdvertiseAddress, config.ControlPlaneEndpoint = "198.51.100.100", "lb.example.org"
		config.TLSSANs = []string{"san.example.org"}
		config.APIServerArgs = []string{"tls-sni-cert-key=" + pair("cn-sni.example.org"), "tls-sni-cert-key=" + pair("x", "in-sni.example.org"), "tls-sni-cert-key=" + pair("x", "*.example.com") + ":sni.example.com,*.sni.example.net"}
	})
	kubelet := func(node string) kubernetes.Interface {
		return clientFor(t, c.withCertificate(t, pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}))
	}
	requests := c.CertificatesV1().CertificateSigningRequests()
	one, two := kubelet("one"), kubelet("two")

	// A kubelet asks before its Node exists, and before the Node has addresses.
	servingRequest{name: "early", cn: "system:node:one", dns: []string{"one"}, ips: []string{"198.19.77.1"}}.create(t, one)
	for client, name := range map[kubernetes.Interface]string{one: "one", two: "two"} {
		create(t, client.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	report(t, two, "two", "198.19.77.2")
	servingRequest{name: "other", cn: "system:node:two", dns: []string{"two"}, ips: []string{"198.19.77.2"}}.create(t, two)
	c.issued(t, "other") // the approver has seen Node one without addresses
	c.unapproved(t, "early")
	report(t, one, "one", "198.19.77.1")
	block, _ := pem.Decode(c.issued(t, "early"))
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.readFile(t, "certs/server-ca.crt"))
	for _, host := range []string{"one", "198.19.77.1"} {
		if _, err := certificate.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
			t.Errorf("the certificate for %s: %v", host, err)
		}
	}

	// What is not the Node's stays without an approval, and the Event names it.
	for _, r := range []struct {
		servingRequest
		as   kubernetes.Interface
		want string
	}{
		{servingRequest{name: "foreign-ip", cn: "system:node:one", ips: []string{"198.19.77.1", "203.0.113.9"}}, one, `"203.0.113.9" is not among the addresses of Node one`},
		{servingRequest{name: "administrators", cn: "system:node:one", dns: []string{"one"}}, c, "its creator is not a kubelet"},
	} {
		r.create(t, r.as)
		c.refused(t, r.name, r.want)
	}

	// A Node whose kubelet claims what the server's own certificates are for.
	three := kubelet("three")
	create(t, three.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "three"}})
	report(t, three, "three", "san.example.org", "cn-sni.example.org", "in-sni.example.org", "a.sni.example.net", "three.example.com")
	for want, r := range map[string]servingRequest{
		`"san.example.org" is of the API server`:    {name: "claims-san", dns: []string{"san.example.org"}},
		`"cn-sni.example.org" is of the API server`: {name: "claims-sni-cn", dns: []string{"cn-sni.example.org"}},
		`"in-sni.example.org" is of the API server`: {name: "claims-sni", dns: []string{"in-sni.example.org"}},
		`"a.sni.example.net" is of the API server`:  {name: "claims-sni-wildcard", dns: []string{"a.sni.example.net"}},
	} {
		r.cn = "system:node:three"
		r.create(t, three)
		c.refused(t, r.name, want)
	}

	// This server has published its names, and another one, which serves the same cluster, publishes its own.
	eventually.Nil(t, "the server's names", func() error {
		all, err := c.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "karve-server-names", metav1.GetOptions{})
		if err != nil {
			return err
		}
		names := slices.Collect(maps.Values(all.Data))
		for _, name := range []string{"san.example.org", "lb.example.org", "cn-sni.example.org", "*.sni.example.net", "198.51.100.100"} {
			if !slices.Contains(names, name) {
				return fmt.Errorf("%s is not among %v", name, names)
			}
		}
		if slices.Contains(names, "127.0.0.1") {
			t.Errorf("an address of an interface is among %v", names)
		}
		return nil
	})
	for range 2 { // a start again
		if err := replacements.PublishNames(t.Context(), c, []string{"second.example.org", "198.51.100.200", "*.second.example.net"}); err != nil {
			t.Fatal(err)
		}
	}
	report(t, three, "three", "second.example.org", "198.51.100.200", "a.second.example.net", "three.example.com")
	servingRequest{name: "claims-second", cn: "system:node:three", dns: []string{"second.example.org", "a.second.example.net"}, ips: []string{"198.51.100.200"}}.create(t, three)
	for _, text := range []string{"second.example.org", "a.second.example.net", "198.51.100.200"} {
		c.refused(t, "claims-second", fmt.Sprintf("%q is of another API server", text))
	}

	// The certificate for sni.example.com has a wildcard, but the server presents it for its names only.
	servingRequest{name: "beside-sni", cn: "system:node:three", dns: []string{"three.example.com"}}.create(t, three)
	c.issued(t, "beside-sni")

	// A denied request stays denied; one that did not match is approved when the Node has the address.
	servingRequest{name: "denied", cn: "system:node:three", ips: []string{"198.19.77.4"}}.create(t, three)
	c.refused(t, "denied", "198.19.77.4")
	csr, err := requests.Get(t.Context(), "denied", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: "Test"}}
	if _, err := requests.UpdateApproval(t.Context(), "denied", csr, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	servingRequest{name: "moved", cn: "system:node:three", ips: []string{"198.19.77.4"}}.create(t, three)
	c.refused(t, "moved", `"198.19.77.4" is not among the addresses of Node three`)
	report(t, three, "three", "198.19.77.4")
	c.issued(t, "moved")
	if csr, err = requests.Get(t.Context(), "denied", metav1.GetOptions{}); err != nil || len(csr.Status.Conditions) != 1 {
		t.Errorf("the denied request: got %+v, %v, want it as it was", csr.Status, err)
	}
}

// Without the option, nobody approves a request that the approver would approve. That the other
// controllers have made a service account since shows that they had the time.
func TestServingCertificatesAreNotApprovedUnasked(t *testing.T) {
	c := shared(t)
	kubelet := clientFor(t, c.withCertificate(t, pkix.Name{CommonName: "system:node:unasked", Organization: []string{"system:nodes"}}))
	create(t, kubelet.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "unasked"}})
	t.Cleanup(func() { _ = c.CoreV1().Nodes().Delete(context.Background(), "unasked", metav1.DeleteOptions{}) })
	report(t, kubelet, "unasked", "198.19.77.9")
	servingRequest{name: "unasked", cn: "system:node:unasked", ips: []string{"198.19.77.9"}}.create(t, kubelet)
	c.namespace(t)
	c.unapproved(t, "unasked")
}

func TestApproverNeedsControllers(t *testing.T) {
	err := server.Config{DataDir: t.TempDir(), ApproveKubeletServing: true, NoControllers: true}.Validate(t.Context())
	if err == nil || !strings.Contains(err.Error(), "--approve-kubelet-serving") {
		t.Errorf("got %v, want an error that names the option", err)
	}
	if err := (server.Config{DataDir: t.TempDir(), ApproveKubeletServing: true}).Validate(t.Context()); err != nil {
		t.Error(err)
	}
}
