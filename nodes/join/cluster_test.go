package join

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/cluster-bootstrap/token/jws"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pubkeypin"
)

const goodToken = "abcdef.0123456789abcdef"

// testCA is a CA with a certificate for a server.
type testCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newCA(t *testing.T, name string) testCA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return testCA{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (ca testCA) serving(t *testing.T, host string) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	template.DNSNames = []string{host}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses, template.DNSNames = []net.IP{ip}, []string{"localhost"}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, ca.key.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: ca.key}
}

// testServer answers what a join asks of an API server. Tests change its fields before they use it.
type testServer struct {
	url  string
	ca   testCA
	hash string

	mu       sync.Mutex
	info     map[string]string // data of cluster-info; nil: there is none
	second   map[string]string // what cluster-info has from the second time on
	asked    int
	status   int           // of cluster-info, if not 200
	off      time.Duration // of its clock
	version  string
	refused  bool            // the token is not accepted
	denied   map[string]bool // subresources of CSRs that the token may not create
	config   map[string]string
	nodes    map[string]*corev1.Node
	seenAuth []string  // of the anonymous requests
	renewed  time.Time // when the kubelet renewed its Lease
	// clients are the authorities of clients' certificates, and signer is the one that signs.
	clients  []testCA
	signer   testCA
	requests []certificatesv1.CertificateSigningRequest
	present  func(tls.Certificate) // sets the server's own certificate
}

func newServer(t *testing.T, host string) *testServer {
	t.Helper()
	s := &testServer{ca: newCA(t, "server-ca"), version: "v1.37.2+karve.1", denied: map[string]bool{}, nodes: map[string]*corev1.Node{}}
	s.hash = pubkeypin.Hash(s.ca.cert)
	s.config = map[string]string{
		"kubelet-config/kubelet":              "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nclusterDNS: [10.96.0.10]\nclusterDomain: cluster.local\nstaticPodPath: /etc/kubernetes/manifests\n",
		"kubeadm-config/ClusterConfiguration": "networking:\n  podSubnet: 10.200.0.0/16\n",
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	serving := s.ca.serving(t, host)
	s.present = func(c tls.Certificate) { s.mu.Lock(); defer s.mu.Unlock(); serving = c }
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return &tls.Config{Certificates: []tls.Certificate{serving}, ClientAuth: tls.RequestClientCert}, nil
	}}
	server.StartTLS()
	t.Cleanup(server.Close)
	s.url = server.URL
	s.sign(t, goodToken, s.ca.pem)
	return s
}

// sign makes a cluster-info for a token, with a CA bundle.
func (s *testServer) sign(t *testing.T, token string, bundle []byte) {
	t.Helper()
	s.info = signed(t, s.url, token, bundle)
}

func signed(t *testing.T, url, token string, bundle []byte) map[string]string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters[""] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: bundle}
	text, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	id, secret, _ := strings.Cut(token, ".")
	signature, err := jws.ComputeDetachedSignature(string(text), id, secret)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"kubeconfig": string(text), "jws-kubeconfig-" + id: signature}
}

func (s *testServer) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Date", time.Now().Add(s.off).UTC().Format(http.TimeFormat))
	w.Header().Set("Content-Type", "application/json")
	answer := func(v any) { _ = json.NewEncoder(w).Encode(v) }
	failure := func(code int, reason metav1.StatusReason) {
		w.WriteHeader(code)
		answer(&metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: "it is " + string(reason)})
	}
	if r.URL.Path == "/api/v1/namespaces/kube-public/configmaps/cluster-info" {
		s.seenAuth = append(s.seenAuth, r.Header.Get("Authorization"))
		s.asked++
		data := s.info
		if s.asked > 1 && s.second != nil {
			data = s.second
		}
		switch {
		case s.status != 0:
			failure(s.status, "")
		case data == nil:
			failure(http.StatusNotFound, metav1.StatusReasonNotFound)
		default:
			answer(&corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"}, Data: data})
		}
		return
	}
	if r.URL.Path == "/version" && (len(r.TLS.PeerCertificates) == 0 || s.knows(r.TLS.PeerCertificates)) {
		answer(map[string]string{"gitVersion": s.version, "major": "1", "minor": "37"})
		return
	}
	if s.refused || r.Header.Get("Authorization") != "Bearer "+goodToken && !s.knows(r.TLS.PeerCertificates) {
		failure(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
		return
	}
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/certificatesigningrequests") && r.Method == http.MethodPost:
		body, _ := io.ReadAll(r.Body)
		decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			failure(http.StatusBadRequest, metav1.StatusReasonBadRequest)
			return
		}
		request := decoded.(*certificatesv1.CertificateSigningRequest)
		request.Name, request.Status.Certificate = "csr-one", s.signer.client(request.Spec.Request, time.Now().Add(time.Hour))
		request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
		s.requests = append(s.requests, *request)
		w.WriteHeader(http.StatusCreated)
		answer(request)
	case strings.HasSuffix(path, "/certificatesigningrequests"):
		list := &certificatesv1.CertificateSigningRequestList{TypeMeta: metav1.TypeMeta{Kind: "CertificateSigningRequestList", APIVersion: "certificates.k8s.io/v1"}}
		if n := len(s.requests); n > 0 {
			list.Items = s.requests[n-1:]
		}
		answer(list)
	case strings.HasSuffix(path, "/selfsubjectaccessreviews"):
		review := &authorizationv1.SelfSubjectAccessReview{}
		// client-go may send protobuf; which it asks is in the text either way.
		body := make([]byte, 4096)
		n, _ := r.Body.Read(body)
		review.Status.Allowed = !(s.denied["nodeclient"] && strings.Contains(string(body[:n]), "nodeclient") || s.denied[""] && !strings.Contains(string(body[:n]), "nodeclient"))
		review.Kind, review.APIVersion = "SelfSubjectAccessReview", "authorization.k8s.io/v1"
		w.WriteHeader(http.StatusCreated)
		answer(review)
	case strings.HasPrefix(path, "/api/v1/namespaces/kube-system/configmaps/"):
		name := path[strings.LastIndex(path, "/")+1:]
		for key, text := range s.config {
			if of, k, _ := strings.Cut(key, "/"); of == name {
				answer(&corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{k: text}})
				return
			}
		}
		failure(http.StatusForbidden, metav1.StatusReasonForbidden)
	case strings.HasPrefix(path, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/"):
		answer(&coordinationv1.Lease{TypeMeta: metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"}, Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: s.renewed}}})
	case strings.HasPrefix(path, "/api/v1/nodes/"):
		if n := s.nodes[strings.TrimPrefix(path, "/api/v1/nodes/")]; n != nil {
			answer(n)
			return
		}
		failure(http.StatusNotFound, metav1.StatusReasonNotFound)
	default:
		failure(http.StatusNotFound, metav1.StatusReasonNotFound)
	}
}

// knows tells whether a client has a certificate of one of the authorities.
func (s *testServer) knows(chain []*x509.Certificate) bool {
	for _, ca := range s.clients {
		roots := x509.NewCertPool()
		roots.AddCert(ca.cert)
		if len(chain) > 0 {
			if _, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err == nil {
				return true
			}
		}
	}
	return false
}

// client signs a request for a client's certificate.
func (ca testCA) client(request []byte, until time.Time) []byte {
	block, _ := pem.Decode(request)
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: parsed.Subject, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, parsed.PublicKey, ca.key)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// selfSigned makes an authority with the name and the key of a client.
func selfSigned(t *testing.T, client *x509.Certificate, key []byte) []byte {
	t.Helper()
	parsed, err := keyutil.ParsePrivateKeyPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), RawSubject: client.RawSubject, NotBefore: client.NotBefore, NotAfter: client.NotAfter,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, client.PublicKey, parsed)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// vouch is the bridge from an authority to its successor.
func (ca testCA) vouch(t *testing.T, next testCA) []byte {
	t.Helper()
	template := *next.cert
	der, err := x509.CreateCertificate(rand.Reader, &template, ca.cert, next.key.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// setNode replaces a Node.
func (s *testServer) setNode(name string, change func(*corev1.Node)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[name]
	if n == nil {
		n = &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	n = n.DeepCopy()
	change(n)
	s.nodes[name] = n
}

func (s *testServer) removeNode(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, name)
}

func ready(n *corev1.Node) {
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
}
