package addons

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm/v1beta4"
	"k8s.io/kubernetes/cmd/kubeadm/app/constants"

	"github.com/karve-k8s/karve/bootstrap/kubeadm"
	"github.com/karve-k8s/karve/internal/clusterinfo"
)

// Check returns the problems of what a user has decided. The errors name the options.
func (s Settings) Check() error {
	var problems []error
	if s.ProxyMode != "" && !slices.Contains(ProxyModes, s.ProxyMode) {
		problems = append(problems, fmt.Errorf("--proxy-mode %q: want %s", s.ProxyMode, strings.Join(ProxyModes, ", ")))
	}
	if s.Server != "" {
		_, err := parseServer(s.Server)
		problems = append(problems, err)
	}
	if s.ClusterDomain != "" && len(validation.IsDNS1123Subdomain(s.ClusterDomain)) > 0 {
		problems = append(problems, fmt.Errorf("--cluster-domain %q: want a DNS domain such as cluster.local", s.ClusterDomain))
	}
	problems = append(problems, checkRanges(s.ClusterCIDR))
	for option, value := range map[string]string{"image": s.Image, "image-repository": s.ImageRepository} {
		if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r == 0x7f }) || strings.Contains(value, "://") {
			problems = append(problems, fmt.Errorf("--%s %q: want the name of an image without spaces and without https://, such as registry.example.org/coredns", option, value))
		}
	}
	return errors.Join(problems...)
}

// Read completes the settings of an addon with what the cluster says about itself. What a user has
// decided stays.
func Read(ctx context.Context, client kubernetes.Interface, name string, s Settings) (Settings, error) {
	var err error
	if s.ServiceRange, err = serviceRange(ctx, client); err != nil {
		return s, err
	}
	if name == KubeProxy {
		if s.Server == "" {
			if s.Server, err = advertised(ctx, client); err != nil {
				return s, err
			}
		}
		if s.ClusterCIDR == "" {
			n, err := networking(ctx, client, "--cluster-cidr")
			if err != nil {
				return s, err
			}
			s.ClusterCIDR = n.PodSubnet
		}
		return s, nil
	}
	if s.ClusterDomain == "" {
		n, err := networking(ctx, client, "--cluster-domain")
		if err != nil {
			return s, err
		}
		if s.ClusterDomain = n.DNSDomain; s.ClusterDomain == "" {
			return s, errors.New("ConfigMap kube-system/kubeadm-config has no networking.dnsDomain: use --cluster-domain")
		}
	}
	if s.Replicas == nil {
		// An administrator may have scaled CoreDNS, to 0, too.
		d, err := client.AppsV1().Deployments(namespace).Get(ctx, CoreDNS, metav1.GetOptions{})
		if err == nil {
			s.Replicas = d.Spec.Replicas
		} else if !apierrors.IsNotFound(err) {
			return s, err
		}
	}
	return s, nil
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

// networking returns what the cluster says about its network. option is the option that replaces it.
func networking(ctx context.Context, client kubernetes.Interface, option string) (v1beta4.Networking, error) {
	n, err := kubeadm.Networking(ctx, client)
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("the cluster has no ConfigMap kube-system/kubeadm-config, which says what its network is: use %s", option)
	}
	return n, err
}

// advertised is the URL at which nodes reach the API server: that of the ConfigMap cluster-info, with
// which they join.
func advertised(ctx context.Context, client kubernetes.Interface) (string, error) {
	cluster, err := clusterinfo.Read(ctx, client)
	switch {
	case err == nil:
		_, err = parseServer(cluster.Server)
		return cluster.Server, err
	case errors.Is(err, clusterinfo.ErrUnreadable):
		return "", fmt.Errorf("%w: repair it, or use --server", err)
	case apierrors.IsNotFound(err):
		return "", errors.New("the cluster has no ConfigMap kube-public/cluster-info, which says at which address nodes reach the server: use --server")
	}
	return "", err
}

// parseServer returns the URL of a server with its port. It is an error if nodes cannot reach it there.
func parseServer(server string) (*url.URL, error) {
	wrong := fmt.Errorf("the server's URL %q: want https://HOST or https://HOST:PORT, with an address at which nodes reach it: start the server with --advertise-address, or use --server", server)
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "https" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return nil, wrong
	}
	host, port := strings.TrimSuffix(strings.ToLower(u.Hostname()), "."), u.Port()
	if port == "" {
		port = "443"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return nil, wrong
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.Unmap().IsLoopback() || ip.Unmap().IsUnspecified() {
			return nil, wrong
		}
	} else if host == "localhost" || len(validation.IsDNS1123Subdomain(host)) > 0 {
		return nil, wrong
	}
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(host, port)}, nil
}

func isAddress(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// checkRanges accepts one CIDR, two of different families, or none.
func checkRanges(clusterCIDR string) error {
	var ranges []netip.Prefix
	for cidr := range strings.SplitSeq(clusterCIDR, ",") {
		r, err := netip.ParsePrefix(cidr)
		if err != nil && clusterCIDR != "" {
			return fmt.Errorf("--cluster-cidr %s: %q is not a CIDR such as 10.244.0.0/16", clusterCIDR, cidr)
		}
		ranges = append(ranges, r)
	}
	if len(ranges) > 2 || len(ranges) == 2 && ranges[0].Addr().Is4() == ranges[1].Addr().Is4() {
		return fmt.Errorf("--cluster-cidr %s: want one range, or one for IPv4 and one for IPv6", clusterCIDR)
	}
	return nil
}

// DNSAddress is the address of the Service kube-dns: the tenth of the primary range of Services.
func DNSAddress(serviceRange string) (string, error) {
	address, err := constants.GetDNSIP(serviceRange)
	return address.String(), err
}
