package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
)

// ClusterInfo is the ConfigMap from which a machine that joins learns where the cluster is.
const ClusterInfo = "ConfigMap " + metav1.NamespacePublic + "/" + bootstrapapi.ConfigMapClusterInfo

// Advertised is what ClusterInfo says about the cluster.
type Advertised struct {
	Address string // HOST:PORT of the API server
	CA      []byte // the authorities to trust, in PEM
}

// ReadAdvertised reads ClusterInfo. It is an error if other machines cannot reach the address in it.
func ReadAdvertised(ctx context.Context, client kubernetes.Interface) (*Advertised, error) {
	info, err := client.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, bootstrapapi.ConfigMapClusterInfo, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, errors.New("there is no " + ClusterInfo + ", which has the address for machines that join: restart the server without --no-kubeadm-objects, and it creates it; with --advertise-address if this machine has no network")
	} else if err != nil {
		return nil, fmt.Errorf("read %s: %w", ClusterInfo, err)
	}
	return parseAdvertised(info.Data[bootstrapapi.KubeConfigKey])
}

// parseAdvertised reads the kubeconfig in ClusterInfo.
func parseAdvertised(kubeconfig string) (*Advertised, error) {
	config, err := clientcmd.Load([]byte(kubeconfig))
	if err != nil || len(config.Clusters) != 1 {
		return nil, fmt.Errorf("%s: its field %s is no kubeconfig with one cluster: delete the ConfigMap and restart the server without --no-kubeadm-objects, and it creates it", ClusterInfo, bootstrapapi.KubeConfigKey)
	}
	var cluster *clientcmdapi.Cluster
	for _, cluster = range config.Clusters {
	}
	u, err := url.Parse(cluster.Server)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" {
		return nil, fmt.Errorf("%s names the server %q: want https://HOST:PORT; set it with --advertise-address", ClusterInfo, cluster.Server)
	}
	host, port := u.Hostname(), u.Port()
	if port == "" {
		port = "443"
	}
	if address, err := netip.ParseAddr(host); host == "localhost" || err == nil && (address.IsLoopback() || address.IsUnspecified()) {
		return nil, fmt.Errorf("%s names the server %s, which other machines cannot reach: start the server with --advertise-address and an address of this machine, or with --control-plane-endpoint", ClusterInfo, cluster.Server)
	}
	return &Advertised{Address: net.JoinHostPort(host, port), CA: cluster.CertificateAuthorityData}, nil
}
