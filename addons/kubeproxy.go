package addons

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

// ProxyModes are the modes of kube-proxy on Linux.
var ProxyModes = []string{"iptables", "nftables", "ipvs"}

// configAnnotation of kube-proxy's Pods is a checksum of their configuration. kube-proxy exits when
// config.conf changes, but does not notice a new kubeconfig. A new checksum replaces the Pods.
const configAnnotation = prefix + "configuration"

func kubeProxy(s Settings) ([]*unstructured.Unstructured, error) {
	objects, err := parse(kubeProxyManifest)
	if err != nil {
		return nil, err
	}
	kubeconfig, err := proxyKubeconfig(s.Server)
	if err != nil {
		return nil, err
	}
	configuration, err := proxyConfiguration(s)
	if err != nil {
		return nil, err
	}
	data := map[string]string{"kubeconfig.conf": kubeconfig, "config.conf": configuration}
	if err := unstructured.SetNestedStringMap(find(objects, "ConfigMap").Object, data, "data"); err != nil {
		return nil, err
	}
	workload := find(objects, "DaemonSet")
	sum := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(kubeconfig+configuration)))
	if err := unstructured.SetNestedField(workload.Object, sum, "spec", "template", "metadata", "annotations", configAnnotation); err != nil {
		return nil, err
	}
	image := fmt.Sprintf("%s/kube-proxy:%s", cmp.Or(s.ImageRepository, DefaultImageRepository), s.Version)
	return objects, setImage(workload, cmp.Or(s.Image, image))
}

// proxyConfiguration is the configuration that kubeadm gives kube-proxy. Everything that is not set
// here has kube-proxy's default.
func proxyConfiguration(s Settings) (string, error) {
	var c kubeproxyconfig.KubeProxyConfiguration
	c.SetGroupVersionKind(kubeproxyconfig.SchemeGroupVersion.WithKind("KubeProxyConfiguration"))
	c.BindAddress = "0.0.0.0"
	if ipv6(s) {
		c.BindAddress = "::"
	}
	c.ClientConnection.Kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf"
	c.ClusterCIDR = s.ClusterCIDR
	c.Mode = kubeproxyconfig.ProxyMode(cmp.Or(s.ProxyMode, ProxyModes[0]))
	text, err := yaml.Marshal(c)
	return strings.TrimSpace(string(text)), err
}

// ipv6 tells whether nodes have IPv6 addresses: they are of the family of the server's address or,
// if that is a name, of the primary range of Services.
func ipv6(s Settings) bool {
	if u, err := url.Parse(s.Server); err == nil {
		if address, err := netip.ParseAddr(u.Hostname()); err == nil {
			return address.Is6()
		}
	}
	services, err := netip.ParsePrefix(s.ServiceRange)
	return err == nil && services.Addr().Is6()
}

// proxyKubeconfig is a kubeconfig for a Pod, with the ServiceAccount's files. kube-proxy cannot use
// the Service kubernetes, which is only reachable through kube-proxy.
func proxyKubeconfig(server string) (string, error) {
	const files, name = "/var/run/secrets/kubernetes.io/serviceaccount/", "default"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthority: files + "ca.crt"}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{TokenFile: files + "token"}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: "default"}
	config.CurrentContext = name
	text, err := clientcmd.Write(*config)
	return string(text), err
}
