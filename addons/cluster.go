package addons

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	discovery "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	netutils "k8s.io/utils/net"
	"sigs.k8s.io/yaml"

	"github.com/karve-k8s/karve/internal/clusterinfo"
)

// Read completes the settings of an addon with what the cluster says about itself. What a user has
// decided stays.
func Read(ctx context.Context, client kubernetes.Interface, name string, s Settings) (Settings, error) {
	var err error
	if s.ServiceRange, err = serviceRange(ctx, client); err != nil {
		return s, err
	}
	switch name {
	case KubeProxy:
		if s.Server == "" {
			if s.Server, err = advertised(ctx, client); err != nil {
				return s, err
			}
		}
		if s.ClusterCIDR == "" {
			networking, err := readNetworking(ctx, client, "--cluster-cidr")
			if err != nil {
				return s, err
			}
			s.ClusterCIDR = networking.PodSubnet
		}
		return s, checkPodRanges(ctx, client, s.ClusterCIDR)
	case CoreDNS:
		if s.ClusterDomain == "" {
			networking, err := readNetworking(ctx, client, "--cluster-domain")
			if err != nil {
				return s, err
			}
			s.ClusterDomain = networking.DNSDomain
		}
		if s.Replicas == nil {
			if s.Replicas, err = replicas(ctx, client); err != nil {
				return s, err
			}
		}
		return s, checkAddressFree(ctx, client, s.ServiceRange)
	}
	return s, unknown(name)
}

// serviceRange is the primary range of Service addresses.
func serviceRange(ctx context.Context, client kubernetes.Interface) (string, error) {
	r, err := client.NetworkingV1().ServiceCIDRs().Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read the range of Service addresses: %w", err)
	}
	if len(r.Spec.CIDRs) == 0 {
		return "", errors.New("ServiceCIDR kubernetes has no range of addresses")
	}
	return r.Spec.CIDRs[0], nil
}

// ReadDNSAddress returns the address of the DNS in a cluster.
func ReadDNSAddress(ctx context.Context, client kubernetes.Interface) (string, error) {
	services, err := serviceRange(ctx, client)
	if err != nil {
		return "", err
	}
	return DNSAddress(services)
}

// networking is the part of kubeadm's ClusterConfiguration that matters here. The server keeps it
// in the ConfigMap kubeadm-config.
type networking struct {
	PodSubnet string `json:"podSubnet"`
	DNSDomain string `json:"dnsDomain"`
}

// readNetworking reads the ConfigMap kubeadm-config. option is the option that replaces it.
func readNetworking(ctx context.Context, client kubernetes.Interface, option string) (networking, error) {
	var c struct {
		Networking networking `json:"networking"`
	}
	m, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, "kubeadm-config", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return c.Networking, fmt.Errorf("the cluster has no ConfigMap %s/kubeadm-config, which says what its network is: use %s", namespace, option)
	} else if err != nil {
		return c.Networking, err
	}
	if err := yaml.Unmarshal([]byte(m.Data["ClusterConfiguration"]), &c); err != nil {
		return c.Networking, fmt.Errorf("ConfigMap %s/kubeadm-config, ClusterConfiguration: %w", namespace, err)
	}
	if option == "--cluster-domain" && c.Networking.DNSDomain == "" {
		return c.Networking, fmt.Errorf("ConfigMap %s/kubeadm-config has no networking.dnsDomain: use %s", namespace, option)
	}
	return c.Networking, nil
}

// advertised is the URL at which nodes reach the API server: that of the ConfigMap cluster-info, with
// which they join, or that of the Service kubernetes.
func advertised(ctx context.Context, client kubernetes.Interface) (string, error) {
	const remedy = "start the server with --advertise-address, or use --server"
	cluster, err := clusterinfo.Read(ctx, client)
	switch {
	case err == nil:
		return cluster.Server, checkServer(cluster.Server)
	case errors.Is(err, clusterinfo.ErrUnreadable):
		return "", fmt.Errorf("%w: repair it, or use --server", err)
	case !apierrors.IsNotFound(err):
		return "", err
	}
	slices, err := client.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: discovery.LabelServiceName + "=kubernetes"})
	if err != nil {
		return "", err
	}
	for _, slice := range slices.Items {
		for _, endpoint := range slice.Endpoints {
			if len(endpoint.Addresses) > 0 && len(slice.Ports) > 0 && slice.Ports[0].Port != nil {
				return "https://" + net.JoinHostPort(endpoint.Addresses[0], strconv.Itoa(int(*slice.Ports[0].Port))), nil
			}
		}
	}
	return "", errors.New("the server advertises no address at which nodes reach it: " + remedy)
}

// checkServer returns an error if nodes cannot reach a server at this URL.
func checkServer(server string) error {
	wrong := func() bool {
		u, err := url.Parse(server)
		if err != nil || u.Scheme != "https" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
			return true
		}
		if port, err := strconv.ParseUint(u.Port(), 10, 16); u.Port() != "" && (err != nil || port == 0) {
			return true
		}
		host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
		if ip, err := netip.ParseAddr(host); err == nil {
			return ip.Unmap().IsLoopback() || ip.Unmap().IsUnspecified()
		}
		return host == "localhost" || len(validation.IsDNS1123Subdomain(host)) > 0
	}
	if wrong() {
		return fmt.Errorf("the server's URL %q: want https://HOST or https://HOST:PORT, with an address at which nodes reach it: start the server with --advertise-address, or use --server", server)
	}
	return nil
}

// parseRanges parses one CIDR, two of different families, or none.
func parseRanges(clusterCIDR string) ([]*net.IPNet, error) {
	if clusterCIDR == "" {
		return nil, nil
	}
	var ranges []*net.IPNet
	for cidr := range strings.SplitSeq(clusterCIDR, ",") {
		_, r, err := net.ParseCIDR(cidr)
		if err != nil {
			return nil, fmt.Errorf("--cluster-cidr %s: %q is not a CIDR such as 10.244.0.0/16", clusterCIDR, cidr)
		}
		ranges = append(ranges, r)
	}
	if len(ranges) > 2 || len(ranges) == 2 && netutils.IsIPv6CIDR(ranges[0]) == netutils.IsIPv6CIDR(ranges[1]) {
		return nil, fmt.Errorf("--cluster-cidr %s: want one range, or one for IPv4 and one for IPv6", clusterCIDR)
	}
	return ranges, nil
}

// checkPodRanges returns an error if a node has Pods outside the range that kube-proxy would be
// told: it would hide their addresses from other Pods.
func checkPodRanges(ctx context.Context, client kubernetes.Interface, clusterCIDR string) error {
	ranges, err := parseRanges(clusterCIDR)
	if err != nil {
		return err
	}
	if len(ranges) == 0 {
		return nil
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	for _, node := range nodes.Items {
		for _, cidr := range node.Spec.PodCIDRs {
			_, pods, err := net.ParseCIDR(cidr)
			if err != nil {
				continue // the API server would not have accepted it
			}
			inside := false
			for _, r := range ranges {
				outer, _ := r.Mask.Size()
				inner, _ := pods.Mask.Size()
				inside = inside || r.Contains(pods.IP) && inner >= outer
			}
			if !inside {
				return fmt.Errorf("the Pods of node %s have addresses of %s, which is not in %s: name the range of all Pods with --cluster-cidr", node.Name, cidr, clusterCIDR)
			}
		}
	}
	return nil
}

// replicas is the number of replicas that CoreDNS has, as an administrator may have scaled it.
// Zero is a number, too. It returns nil if there is no CoreDNS yet.
func replicas(ctx context.Context, client kubernetes.Interface) (*int32, error) {
	d, err := client.AppsV1().Deployments(namespace).Get(ctx, "coredns", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return d.Spec.Replicas, nil
}

// checkAddressFree returns an error if the DNS' address is another Service's, or its Service has
// another address. A Service cannot change its address.
func checkAddressFree(ctx context.Context, client kubernetes.Interface, serviceRange string) error {
	address, err := DNSAddress(serviceRange)
	if err != nil {
		return err
	}
	own, err := client.CoreV1().Services(namespace).Get(ctx, "kube-dns", metav1.GetOptions{})
	if err == nil {
		if own.Spec.ClusterIP != address {
			//lint:ignore ST1005 Service is a kind of Kubernetes'
			return fmt.Errorf("Service %s/kube-dns has the address %s, and the cluster's DNS is at %s, the tenth address of %s: delete the Service, and apply the addon again",
				namespace, own.Spec.ClusterIP, address, serviceRange)
		}
		return nil
	} else if !apierrors.IsNotFound(err) {
		return err
	}
	taken, err := client.NetworkingV1().IPAddresses().Get(ctx, address, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	owner := "something else"
	if p := taken.Spec.ParentRef; p != nil {
		owner = fmt.Sprintf("%s %s/%s", strings.TrimSuffix(p.Resource, "s"), p.Namespace, p.Name)
	}
	return fmt.Errorf("the DNS' address %s, the tenth of %s, belongs to %s: delete that, and create it again with another address", address, serviceRange, owner)
}
