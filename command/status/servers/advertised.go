package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/karve-k8s/karve/internal/clusterinfo"
)

// Advertised is what ConfigMap cluster-info says about the cluster.
type Advertised struct {
	Address string // HOST:PORT of the API server
	CA      []byte // the authorities to trust, in PEM
}

// ReadAdvertised reads ConfigMap cluster-info. It is an error if other machines cannot reach the address
// in it.
func ReadAdvertised(ctx context.Context, client kubernetes.Interface) (*Advertised, error) {
	cluster, err := clusterinfo.Read(ctx, client)
	switch {
	case apierrors.IsNotFound(err):
		return nil, errors.New("there is no " + clusterinfo.Name + ", which has the address for machines that join: restart the server without --no-kubeadm-objects, and it creates it; with --advertise-address if this machine has no network")
	case errors.Is(err, clusterinfo.ErrUnreadable):
		return nil, fmt.Errorf("%w: delete the ConfigMap and restart the server without --no-kubeadm-objects, and it creates it", err)
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", clusterinfo.Name, err)
	}
	return advertised(cluster)
}

// advertised checks the address in ConfigMap cluster-info.
func advertised(cluster *clientcmdapi.Cluster) (*Advertised, error) {
	u, err := url.Parse(cluster.Server)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" {
		return nil, fmt.Errorf("%s names the server %q: want https://HOST:PORT; set it with --advertise-address", clusterinfo.Name, cluster.Server)
	}
	host, port := u.Hostname(), u.Port()
	if port == "" {
		port = "443"
	}
	if address, err := netip.ParseAddr(host); host == "localhost" || err == nil && (address.IsLoopback() || address.IsUnspecified()) {
		return nil, fmt.Errorf("%s names the server %s, which other machines cannot reach: start the server with --advertise-address and an address of this machine, or with --control-plane-endpoint", clusterinfo.Name, cluster.Server)
	}
	return &Advertised{Address: net.JoinHostPort(host, port), CA: cluster.CertificateAuthorityData}, nil
}
