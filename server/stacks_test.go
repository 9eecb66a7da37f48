package server_test

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server"
)

// kubernetesEndpoint waits for the endpoint through which Pods reach the server. It returns
// its address and the address type of its slice.
func (c *cluster) kubernetesEndpoint(t *testing.T) (address string, family discoveryv1.AddressType) {
	t.Helper()
	eventually.Nil(t, "the kubernetes Service has an endpoint", func() error {
		slice, err := c.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(slice.Endpoints) == 0 {
			return fmt.Errorf("no endpoint in %+v", slice)
		}
		address, family = slice.Endpoints[0].Addresses[0], slice.AddressType
		u, err := url.Parse(c.URL)
		if err != nil {
			return err
		}
		if port := fmt.Sprint(*slice.Ports[0].Port); port != u.Port() {
			return fmt.Errorf("port %s, want %s", port, u.Port())
		}
		return nil
	})
	return address, family
}

func (c *cluster) service(t *testing.T, name string, policy corev1.IPFamilyPolicy) []string {
	t.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{IPFamilyPolicy: ptr.To(policy), Ports: []corev1.ServicePort{{Port: 80}}},
	}
	var made *corev1.Service
	// Upstream's allocator reads its ranges with an informer. Until then it says that they are full.
	eventually.Nil(t, "the Service "+name, func() (err error) {
		made, err = c.CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{})
		return err
	})
	return made.Spec.ClusterIPs
}

func inRange(t *testing.T, ip, cidr string) bool {
	t.Helper()
	_, ipnet, err := net.ParseCIDR(cidr)
	fatal(t, err)
	return ipnet.Contains(net.ParseIP(ip))
}

func TestDualStack(t *testing.T) {
	c := start(t, func(config *server.Config) {
		config.ServiceClusterIPRange = "10.96.0.0/16,fd00:10:96::/112" // the ranges of Pods follow it
	})
	both := c.service(t, "both", corev1.IPFamilyPolicyPreferDualStack)
	if len(both) != 2 || !inRange(t, both[0], "10.96.0.0/16") || !inRange(t, both[1], "fd00:10:96::/112") {
		t.Errorf("cluster IPs of a dual-stack Service: got %v, want one of each range", both)
	}
	if one := c.service(t, "one", corev1.IPFamilyPolicySingleStack); len(one) != 1 || !inRange(t, one[0], "10.96.0.0/16") {
		t.Errorf("cluster IPs of a single-stack Service: got %v, want one of the first range", one)
	}
	eventually.Nil(t, "the kubernetes Service has the first address", func() error { // made after the start
		kubernetes, err := c.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err == nil && kubernetes.Spec.ClusterIP != "10.96.0.1" {
			err = fmt.Errorf("got %s", kubernetes.Spec.ClusterIP)
		}
		return err
	})
	c.node(t, "dual")
	eventually.Nil(t, "the node has a Pod range of each family", func() error {
		node, err := c.CoreV1().Nodes().Get(t.Context(), "dual", metav1.GetOptions{})
		if err != nil {
			return err
		}
		ranges := node.Spec.PodCIDRs
		if len(ranges) != 2 || !strings.HasPrefix(ranges[0], "10.244.") || !inRange(t, strings.TrimSuffix(ranges[1], "/64"), "fd00:10:244::/56") {
			return fmt.Errorf("got %v", ranges)
		}
		return nil
	})
	trustedFor(t, c, "10.96.0.1", "fd00:10:96::1", "kubernetes.default.svc", "localhost", "127.0.0.1")
}

// withRange waits until a node has a Pod range.
func (c *cluster) withRange(t *testing.T, name, prefix string) {
	t.Helper()
	eventually.Nil(t, "node "+name+" has a Pod range", func() error {
		node, err := c.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && !strings.HasPrefix(node.Spec.PodCIDR, prefix) {
			err = fmt.Errorf("got %q, want %s", node.Spec.PodCIDR, prefix)
		}
		return err
	})
}

// wantPodSubnet checks the range of which nodes are told when they join; empty is none.
func (c *cluster) wantPodSubnet(t *testing.T, want string) {
	t.Helper()
	config, err := c.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "kubeadm-config", metav1.GetOptions{})
	fatal(t, err)
	text := config.Data["ClusterConfiguration"]
	if strings.Contains(text, "podSubnet") != (want != "") || want != "" && !strings.Contains(text, "podSubnet: "+want+"\n") {
		t.Errorf("podSubnet in kubeadm-config: want %q in\n%s", want, text)
	}
}

func (c *cluster) wantLogged(t *testing.T, want string) {
	t.Helper()
	if !strings.Contains(c.log.String(), want) {
		t.Errorf("want %q in the log:\n%s", want, c.log)
	}
}

// A cluster whose nodes have Pod ranges of another program's starts all the same, and its nodes keep them. Without a controller that
// assigns ranges, nodes that join are told the range that a user has named, and no default.
// TestBlockedStart has a range that does not fit the nodes.
func TestPodRangesOutsideTheDefault(t *testing.T) {
	dir := t.TempDir()
	once(t, dir, func(config *server.Config) { config.ClusterCIDR = "10.1.0.0/16" }, func(c *cluster) {
		c.node(t, "old")
		c.withRange(t, "old", "10.1.")
	})
	once(t, dir, nil, func(c *cluster) {
		c.wantLogged(t, "node old have addresses of 10.1.0.0/24, which is not in the default range 10.244.0.0/16; --cluster-cidr")
		c.wantPodSubnet(t, "10.1.0.0/16") // which a user has named
		fatal(t, c.CoreV1().Nodes().Delete(t.Context(), "old", metav1.DeleteOptions{}))
	})
	once(t, dir, nil, func(c *cluster) {
		c.node(t, "new")
		c.withRange(t, "new", "10.244.")
	})
	if testing.Short() {
		return
	}
	dir = t.TempDir()
	once(t, dir, func(c *server.Config) { c.ControllerManagerArgs = []string{"allocate-node-cidrs=false"} }, func(c *cluster) {
		c.wantPodSubnet(t, "")
		if got, err := control.New(dir).Notices(t.Context()); err != nil || len(got) > 0 {
			t.Errorf("notices: got %q and %v, want none", got, err)
		}
	})
	once(t, dir, func(c *server.Config) {
		c.ClusterCIDR, c.ControllerManagerArgs = "192.168.0.0/16", []string{"allocate-node-cidrs=false"}
		c.ServiceClusterIPRange = "10.97.0.0/16" // not that of the first start
	}, func(c *cluster) {
		c.wantPodSubnet(t, "192.168.0.0/16")
		const want = "--service-cluster-ip-range 10.97.0.0/16 has no effect: the ServiceCIDR kubernetes has 10.96.0.0/12"
		if got, err := control.New(dir).Notices(t.Context()); err != nil || len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("notices: got %q and %v, want %q", got, err, want)
		}
		c.wantLogged(t, want)
	})
}

func TestIPv6Only(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("this machine has no IPv6 loopback: ", err)
	} else {
		l.Close()
	}
	c := start(t, func(config *server.Config) {
		config.ServiceClusterIPRange = "fd00:10:96::/112"
		config.BindAddress, config.InsecureBindAddress = "::1", "::1"
	})
	for name, u := range map[string]string{"secure": c.URL, "insecure": c.InsecureURL} {
		if at, err := url.Parse(u); err != nil || at.Hostname() != "::1" {
			t.Errorf("%s listener: got %s and error %v, want it at ::1", name, u, err)
		}
	}
	if ips := c.service(t, "six", corev1.IPFamilyPolicyPreferDualStack); len(ips) != 1 || !inRange(t, ips[0], "fd00:10:96::/112") {
		t.Errorf("cluster IPs: got %v, want one of the range", ips)
	}
	status, _ := get(t, plainClient(t), c.InsecureURL+"/api/v1/namespaces/default")
	if status != 200 {
		t.Errorf("insecure listener: got %d, want 200", status)
	}
	trustedFor(t, c, "fd00:10:96::1", "::1")
	if !haveIPv6(t) {
		t.Skip("this machine has no IPv6 address but loopback's to advertise")
	}
	address, family := c.kubernetesEndpoint(t)
	if ip := net.ParseIP(address); family != discoveryv1.AddressTypeIPv6 || ip.To4() != nil || ip.IsLoopback() {
		t.Errorf("advertised: got %s %s, want an IPv6 address of an interface", family, address)
	}
}

// No endpoint can have a loopback address. A server that is told to advertise one starts, and the
// kubernetes Service has no endpoints.
func TestLoopbackAdvertised(t *testing.T) {
	c := start(t, func(config *server.Config) { config.AdvertiseAddress = "127.0.0.1" })
	if _, err := c.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if slice, err := c.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}); err == nil {
		t.Errorf("got the endpoints %v, want none", slice.Endpoints)
	}
}

func haveIPv6(t *testing.T) bool {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	fatal(t, err)
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() == nil && ip.IP.IsGlobalUnicast() {
			return true
		}
	}
	return false
}

func TestAdvertisedEndpoint(t *testing.T) {
	c := shared(t)
	want := interfaceAddress(t)
	if got, family := c.kubernetesEndpoint(t); got != want && net.ParseIP(got).IsLoopback() || family != discoveryv1.AddressTypeIPv4 {
		t.Errorf("got %s %s, want IPv4 of an interface, such as %s", family, got, want)
	}
}
