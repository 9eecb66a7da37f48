package certs

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strings"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"

	"github.com/karve-k8s/karve/internal/atomicfile"
)

// DefaultContext is the name of the cluster, user and context if none is given.
const DefaultContext = "karve"

// AdvertisedContext is the name of the cluster and the context with Kubeconfig.Advertised.
const AdvertisedContext = DefaultContext + "-advertised"

// Kubeconfig is one cluster, one user, and a context of the two, all with the name DefaultContext.
type Kubeconfig struct {
	// Server is the URL of the API server. Required.
	Server string
	// Advertised is the URL at which users reach the cluster. It makes a second cluster and a second
	// context, AdvertisedContext. Empty means that there is no such URL.
	Advertised string
	// CAFile is what to trust. CertFile and KeyFile are the user's identity. All three may
	// be empty, for the insecure listener.
	CAFile, CertFile, KeyFile string
	// NoSync leaves out fsync, as in Config.
	NoSync bool
}

// Kubeconfig returns that of user, a leaf such as Admin or Scheduler, at server.
func (s *Store) Kubeconfig(user Name, server string) Kubeconfig {
	return Kubeconfig{
		Server:   server,
		CAFile:   s.CertFile(ServerCA),
		CertFile: s.CertFile(user),
		KeyFile:  s.KeyFile(user),
		NoSync:   s.cfg.NoSync,
	}
}

// config returns the entries of k, with the contents of its files.
func (k Kubeconfig) config() (*clientcmdapi.Config, error) {
	if k.Server == "" {
		return nil, errors.New("no server given")
	}
	config, cluster, user := clientcmdapi.NewConfig(), &clientcmdapi.Cluster{}, &clientcmdapi.AuthInfo{}
	SetServer(cluster, k.Server)
	if err := embed(k, cluster, user); err != nil {
		return nil, err
	}
	config.Clusters[DefaultContext], config.AuthInfos[DefaultContext], config.CurrentContext = cluster, user, DefaultContext
	config.Contexts[DefaultContext] = &clientcmdapi.Context{Cluster: DefaultContext, AuthInfo: DefaultContext}
	if k.Advertised != "" {
		second := cluster.DeepCopy()
		SetServer(second, k.Advertised)
		config.Clusters[AdvertisedContext] = second
		config.Contexts[AdvertisedContext] = &clientcmdapi.Context{Cluster: AdvertisedContext, AuthInfo: DefaultContext}
	}
	return config, nil
}

// AsideSuffix ends the name that a server's own kubeconfig has during a start, until WriteKubeconfig writes it again.
const AsideSuffix = ".previous"

// WriteKubeconfig writes k to path, a server's own kubeconfig, in one step and with mode 0600. It makes missing
// directories with mode 0700. What users have added stays, and so does the current context, unless
// the file was put aside. It does not write a file that already has that content.
func WriteKubeconfig(path string, k Kubeconfig) error {
	own, err := k.config()
	if err != nil {
		return fmt.Errorf("write kubeconfig %s: %w", path, err)
	}
	file, err := readKubeconfig(path)
	aside := path + AsideSuffix
	if errors.Is(err, fs.ErrNotExist) {
		if file, err = readKubeconfig(aside); err != nil { // there is none, or it is damaged: then it stays
			file, aside = kubeconfigFile{config: clientcmdapi.NewConfig()}, ""
		}
		file.config.CurrentContext = own.CurrentContext
	} else if aside = ""; err != nil {
		return err
	}
	for _, name := range []string{DefaultContext, AdvertisedContext} {
		delete(file.config.Clusters, name)
		if own.Contexts[name] == nil {
			delete(file.config.Contexts, name)
		}
	}
	file.put(own)
	data, _, err := file.encode()
	if err != nil {
		return err
	}
	if _, err = replace(atomicfile.Writer{NoSync: k.NoSync}, path, data, fileMode); err == nil && aside != "" {
		err = os.Remove(aside)
	}
	return err
}

// OwnKubeconfig returns what a server has written into its own kubeconfig, and nothing that anybody has added. It may be empty.
func OwnKubeconfig(config *clientcmdapi.Config) *clientcmdapi.Config {
	own := clientcmdapi.NewConfig()
	own.CurrentContext = DefaultContext
	if u := config.AuthInfos[DefaultContext]; u != nil {
		own.AuthInfos[DefaultContext] = &clientcmdapi.AuthInfo{ClientCertificateData: u.ClientCertificateData, ClientKeyData: u.ClientKeyData}
	}
	for _, name := range []string{DefaultContext, AdvertisedContext} {
		if c, in := config.Clusters[name], config.Contexts[name]; c != nil && in != nil {
			own.Clusters[name] = &clientcmdapi.Cluster{Server: c.Server, CertificateAuthorityData: c.CertificateAuthorityData, DisableCompression: c.DisableCompression}
			own.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: DefaultContext, Namespace: in.Namespace}
		}
	}
	return own
}

// SetServer makes server the URL of a cluster. Clients on the server's own machine ask for no compression:
// it costs CPU time and saves no network.
func SetServer(cluster *clientcmdapi.Cluster, server string) {
	cluster.Server, cluster.DisableCompression = server, isLocal(server)
}

// isLocal reports whether a URL is reached from its own machine only.
func isLocal(server string) bool {
	u, err := url.Parse(server)
	return err == nil && IsLoopback(u.Hostname())
}

// IsLoopback reports whether a host, a name or an address, is reached from its own machine only.
func IsLoopback(host string) bool {
	return strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback()
}

// KubeconfigServers returns the Server and Advertised in a server's own kubeconfig; empty if it
// has none.
func KubeconfigServers(config *clientcmdapi.Config) (server, users string) {
	none := &clientcmdapi.Cluster{}
	return cmp.Or(config.Clusters[DefaultContext], none).Server, cmp.Or(config.Clusters[AdvertisedContext], none).Server
}

// embed reads the files of k. Only the certificates in them get into the entries.
func embed(k Kubeconfig, cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) (err error) {
	for to, path := range map[*[]byte]string{&cluster.CertificateAuthorityData: k.CAFile, &user.ClientCertificateData: k.CertFile} {
		if path == "" {
			continue
		}
		all, err := certutil.CertsFromFile(path)
		if err != nil {
			return err
		}
		*to = encodeCerts(all)
	}
	if k.CertFile == "" {
		return nil
	}
	if user.ClientKeyData, err = os.ReadFile(k.KeyFile); err != nil {
		return err
	}
	if _, err := tls.X509KeyPair(user.ClientCertificateData, user.ClientKeyData); err != nil {
		return fmt.Errorf("%w: %s and %s", ErrMismatch, k.CertFile, k.KeyFile)
	}
	return nil
}
