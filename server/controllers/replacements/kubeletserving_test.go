package replacements

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"
)

// The API server's admission refuses some of these requests, too. The approver does not rely on it,
// because it can be switched off.
func TestServingApproverRefuses(t *testing.T) {
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for name, addresses := range map[string][]string{
		"one": {"one", "One.example.", "192.0.2.1", "2001:db8::1", "192.0.2.9", "10.96.0.7", "127.0.0.1", "kubernetes", "*.example",
			"192.0.2.100", "192.0.2.101", "lb.example.org", "any.san.example", "bare", "metrics-server.kube-system.svc", "a.b.svc.cluster.local",
			"10.200.0.9", "169.254.169.254"},
		"two": {"two", "192.0.2.2", "192.0.2.9"}, "bare": nil,
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, a := range addresses {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Address: a})
		}
		if err := nodes.Add(n); err != nil {
			t.Fatal(err)
		}
	}
	ranges := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	slices := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	server := []string{"lb.example.org", "192.0.2.100", "*.san.example"}
	var unreadable error
	c := &servingApproverController{
		client: fake.NewClientset(), nodes: corelisters.NewNodeLister(nodes), ranges: networkinglisters.NewServiceCIDRLister(ranges), slices: discoverylisters.NewEndpointSliceLister(slices),
		services: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}, server: func() ([]string, error) { return server, unreadable },
	}
	// A range that somebody adds while the server runs, and another server of the datastore.
	if err := ranges.Add(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.200.0.0/16"}}}); err != nil {
		t.Fatal(err)
	}
	if err := slices.Add(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.101"}}},
	}); err != nil {
		t.Fatal(err)
	}
	refuse := func(csr *certificatesv1.CertificateSigningRequest) error {
		known, err := c.known(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return refuse(csr, known)
	}

	type request struct {
		user, cn string
		groups   []string
		dns, ips []string
		uri      string
		usages   []certificatesv1.KeyUsage
	}
	fine := func() request {
		return request{user: "system:node:one", cn: "system:node:one", groups: []string{"system:nodes", "system:authenticated"},
			dns: []string{"one"}, ips: []string{"192.0.2.1"}, usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}}
	}
	for _, tc := range []struct {
		name   string
		change func(*request)
		want   string // in the error; empty: none
	}{
		{"a kubelet's", func(*request) {}, ""},
		{"everything of the Node's", func(r *request) {
			r.dns, r.ips = []string{"ONE", "one.example"}, []string{"192.0.2.1", "2001:db8::1"}
		}, ""},
		{"an RSA key's", func(r *request) { r.usages = append(r.usages, certificatesv1.UsageKeyEncipherment) }, ""},
		{"another user's", func(r *request) { r.user = "kubernetes-admin" }, "its creator is not a kubelet"},
		{"of nobody", func(r *request) { r.user = "system:node:" }, "its creator is not a kubelet"},
		{"of a user outside the group", func(r *request) { r.groups = []string{"system:authenticated"} }, "its creator is not a kubelet"},
		{"for another Node", func(r *request) { r.cn = "system:node:two" }, `common name in it is "system:node:two"`},
		{"for no Node", func(r *request) { r.cn = "one" }, "common name does not begin with system:node:"},
		{"without names", func(r *request) { r.dns, r.ips = nil, nil }, "subjectAltName is required"},
		{"with a URI", func(r *request) { r.uri = "spiffe://one" }, "URI"},
		{"for clients", func(r *request) { r.usages[1] = certificatesv1.UsageClientAuth }, "usages"},
		{"for clients as well", func(r *request) { r.usages = append(r.usages, certificatesv1.UsageClientAuth) }, "usages"},
		{"a foreign address", func(r *request) { r.ips = append(r.ips, "203.0.113.9") }, `"203.0.113.9" is not among the addresses of Node one`},
		{"a foreign name", func(r *request) { r.dns = append(r.dns, "api.example") }, `"api.example" is not among the addresses of Node one`},
		{"two of them", func(r *request) { r.dns, r.ips = []string{"a.example"}, []string{"203.0.113.9"} }, `"a.example" is not among the addresses of Node one; "203.0.113.9" is`},
		{"many", func(r *request) { r.dns = []string{"a", "b", "c", "d", "e"} }, `"c" is not among the addresses of Node one; and 2 more`},
		{"too many", func(r *request) { r.dns = make32("one") }, "it has 33 names and addresses"},
		{"a long name", func(r *request) { r.dns = []string{strings.Repeat("long", 1000)} }, `longlonglong"… is not among`},
		{"an address of both Nodes", func(r *request) { r.ips = []string{"192.0.2.9"} }, `"192.0.2.9" is also an address of Node two`},
		{"a Service's address", func(r *request) { r.ips = []string{"10.96.0.7"} }, `"10.96.0.7" is an address of a Service`},
		{"loopback", func(r *request) { r.ips = []string{"127.0.0.1"} }, `"127.0.0.1" is no address of a machine`},
		{"the API server's name", func(r *request) { r.dns = []string{"Kubernetes"} }, `"Kubernetes" is a name of the API server`},
		{"a wildcard", func(r *request) { r.dns = []string{"*.example"} }, `"*.example" is a name of more than one machine`},
		{"an address of the API server's certificate", func(r *request) { r.ips = []string{"192.0.2.100"} }, `"192.0.2.100" is of the API server: if the kubelet runs on the server's machine, karve kubectl certificate approve`},
		{"the same, mapped to IPv6", func(r *request) { r.ips = []string{"::ffff:192.0.2.100"} }, `"192.0.2.100" is of the API server`},
		{"the address of another server", func(r *request) { r.ips = []string{"192.0.2.101"} }, `"192.0.2.101" is of the API server`},
		{"a name of the API server's certificate", func(r *request) { r.dns = []string{"LB.example.org."} }, `"LB.example.org." is of the API server`},
		{"a name that a wildcard of it covers", func(r *request) { r.dns = []string{"any.san.example"} }, `"any.san.example" is of the API server`},
		{"the name of a Node without addresses", func(r *request) { r.dns = []string{"bare"} }, `"bare" is also the name of Node bare`},
		{"a Service's name", func(r *request) { r.dns = []string{"metrics-server.kube-system.svc"} }, `"metrics-server.kube-system.svc" is the name of a Service`},
		{"a Service's whole name", func(r *request) { r.dns = []string{"a.b.svc.cluster.local"} }, `"a.b.svc.cluster.local" is the name of a Service`},
		{"an address of a later range of Services", func(r *request) { r.ips = []string{"10.200.0.9"} }, `"10.200.0.9" is an address of a Service`},
		{"a link-local address", func(r *request) { r.ips = []string{"169.254.169.254"} }, `"169.254.169.254" is no address of a machine`},
		{"an address as a name", func(r *request) { r.dns = []string{"10.96.0.7"} }, `"10.96.0.7" is an address in the place of a name`},
		{"a Node without addresses", func(r *request) { r.user, r.cn = "system:node:bare", "system:node:bare" }, errNotYet.Error()},
		{"a Node that does not exist", func(r *request) { r.user, r.cn = "system:node:new", "system:node:new" }, errNotYet.Error()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := fine()
			tc.change(&r)
			template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: r.cn, Organization: []string{nodesGroup}}, DNSNames: r.dns}
			for _, ip := range r.ips {
				template.IPAddresses = append(template.IPAddresses, net.ParseIP(ip))
			}
			if r.uri != "" {
				uri, err := url.Parse(r.uri)
				if err != nil {
					t.Fatal(err)
				}
				template.URIs = []*url.URL{uri}
			}
			key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
			if err != nil {
				t.Fatal(err)
			}
			err = refuse(&certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
				Username: r.user, Groups: r.groups, Usages: r.usages, SignerName: certificatesv1.KubeletServingSignerName,
				Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			}})
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if errors.Is(err, errNotYet) != (tc.want == errNotYet.Error()) {
				t.Errorf("got %v: whether to wait is wrong", err)
			}
		})
	}
	if err := refuse(&certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
		Username: "system:node:one", Groups: []string{nodesGroup}, Request: []byte("nonsense")}}); err == nil {
		t.Error("nonsense: got no error")
	}
	// Without the names of the server, nothing can be approved.
	unreadable = errors.New("hidden")
	if _, err := c.known(t.Context()); !errors.Is(err, unreadable) {
		t.Errorf("names that cannot be read: got %v", err)
	}
}

// make32 is a name 32 times.
func make32(name string) []string {
	return strings.Split(strings.TrimSuffix(strings.Repeat(name+" ", 32), " "), " ")
}
