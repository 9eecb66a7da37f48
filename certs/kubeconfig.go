package certs

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/karve-k8s/karve/internal/atomicfile"
)

// DefaultContext is the name of the cluster, user and context if none is given.
const DefaultContext = "karve"

// AdvertisedSuffix ends the name of the cluster and the context with Kubeconfig.Advertised.
const AdvertisedSuffix = "-advertised"

// Kubeconfig says what WriteKubeconfig writes: one cluster, one user, and a context of the
// two, which is the current one.
type Kubeconfig struct {
	// Name is the name of all three; DefaultContext if empty.
	Name string
	// Server is the URL of the API server. Required.
	Server string
	// Advertised is the URL at which users reach the cluster. It makes a second cluster and a second
	// context, whose names end in AdvertisedSuffix. Empty means that there is no such URL.
	Advertised string
	// CAFile is what to trust. CertFile and KeyFile are the user's identity. All three may
	// be empty, for the insecure listener.
	CAFile, CertFile, KeyFile string
	// NoSync leaves out fsync, as in Config.
	NoSync bool
}

// Kubeconfig returns what WriteKubeconfig needs for user, a leaf such as Admin
// or Scheduler, at server.
func (s *Store) Kubeconfig(user Name, server string) Kubeconfig {
	return Kubeconfig{
		Server:   server,
		CAFile:   s.CertFile(ServerCA),
		CertFile: s.CertFile(user),
		KeyFile:  s.KeyFile(user),
		NoSync:   s.cfg.NoSync,
	}
}

// WriteKubeconfig writes k to path, in one step, with exactly mode (0600 if mode is 0). It
// makes missing directories with mode 0700 and follows a symbolic link. It does not write a
// file that already has that content and mode.
func WriteKubeconfig(path string, mode os.FileMode, k Kubeconfig) error {
	if k.Server == "" {
		return fmt.Errorf("write kubeconfig %s: no server given", path)
	}
	if k.Name == "" {
		k.Name = DefaultContext
	}
	if mode == 0 {
		mode = fileMode
	}
	cluster := &clientcmdapi.Cluster{}
	SetServer(cluster, k.Server)
	user := &clientcmdapi.AuthInfo{}
	if err := embed(k, cluster, user); err != nil {
		return fmt.Errorf("write kubeconfig %s: %w", path, err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[k.Name] = cluster
	config.AuthInfos[k.Name] = user
	config.Contexts[k.Name] = &clientcmdapi.Context{Cluster: k.Name, AuthInfo: k.Name}
	config.CurrentContext = k.Name
	if k.Advertised != "" {
		name, second := k.Name+AdvertisedSuffix, cluster.DeepCopy()
		SetServer(second, k.Advertised)
		config.Clusters[name] = second
		config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: k.Name}
	}
	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("write kubeconfig %s: %w", path, err)
	}
	_, err = replace(atomicfile.Writer{NoSync: k.NoSync}, path, data, mode)
	return err
}

// SetServer makes server the URL of a cluster. Clients on the server's own machine ask for no compression:
// it costs CPU time and saves no network.
func SetServer(cluster *clientcmdapi.Cluster, server string) {
	cluster.Server = server
	u, err := url.Parse(server)
	cluster.DisableCompression = err == nil && IsLoopback(u.Hostname())
}

// IsLoopback reports whether a host, a name or an address, is reached from its own machine only.
func IsLoopback(host string) bool {
	return strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback()
}

// KubeconfigServers returns the Server and Advertised of a file that WriteKubeconfig wrote; empty if it
// has none.
func KubeconfigServers(config *clientcmdapi.Config) (server, advertised string) {
	for name, cluster := range config.Clusters {
		if strings.HasSuffix(name, AdvertisedSuffix) {
			advertised = cluster.Server
		} else {
			server = cluster.Server
		}
	}
	return server, advertised
}

func embed(k Kubeconfig, cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) error {
	for _, r := range []struct {
		to   *[]byte
		path string
	}{{&cluster.CertificateAuthorityData, k.CAFile}, {&user.ClientCertificateData, k.CertFile}, {&user.ClientKeyData, k.KeyFile}} {
		if r.path == "" {
			continue
		}
		data, err := os.ReadFile(r.path)
		if err != nil {
			return err
		}
		*r.to = data
	}
	if len(user.ClientCertificateData) == 0 {
		return nil
	}
	if _, err := tls.X509KeyPair(user.ClientCertificateData, user.ClientKeyData); err != nil {
		return fmt.Errorf("%w: %s and %s", ErrMismatch, k.CertFile, k.KeyFile)
	}
	return nil
}
