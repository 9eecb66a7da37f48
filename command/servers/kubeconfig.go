package servers

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/karve-k8s/karve/internal/ownership"
)

// KubeconfigName is the file in a data directory that has the admin's credentials.
const KubeconfigName = "admin.kubeconfig"

// kubeconfigLimit is the size of the largest file that is read. A server writes about 6 KiB.
const kubeconfigLimit = 1 << 20

// ErrUnlike means that a kubeconfig has something that no server writes. Such a file could start a
// program, send a file of the reader's to a server, or make the reader trust any server.
var ErrUnlike = errors.New("it is not as a server writes it")

// Kubeconfig returns the configuration in the admin's kubeconfig of a data directory, which may be
// another user's. It returns [ErrUnlike] for a file that no server has written.
func Kubeconfig(dir string) (*rest.Config, error) {
	made, _, err := WholeKubeconfig(dir)
	return made, err
}

// WholeKubeconfig is [Kubeconfig], and everything that is in the file.
func WholeKubeconfig(dir string) (*rest.Config, *clientcmdapi.Config, error) {
	path := filepath.Join(dir, KubeconfigName)
	text, err := readRegular(path)
	if err != nil {
		return nil, nil, err
	}
	config, err := clientcmd.Load(text)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	// The order counts: a rest.Config is made by reading the files that it names.
	if err := asWritten(config); err != nil {
		return nil, nil, fmt.Errorf("%s: %w: %w", path, ErrUnlike, err)
	}
	made, err := clientcmd.NewDefaultClientConfig(*config, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	made.Proxy = Direct
	return made, config, nil
}

// KubeconfigText returns the admin's kubeconfig of a data directory for another file, or for another reader: nothing that
// [Kubeconfig] refuses, and nothing that it has not understood. Root reads it as the owner of the directory.
func KubeconfigText(dir string) (text []byte, err error) {
	err = ownership.Act(dir, func() error {
		_, config, err := WholeKubeconfig(dir)
		if err == nil {
			text, err = clientcmd.Write(*config)
		}
		return err
	})
	return text, err
}

// Direct is a proxy function (http.Transport) for a server of this machine, whose address may be none that HTTPS_PROXY
// leaves out: no proxy.
func Direct(*http.Request) (*url.URL, error) { return nil, nil }

// readRegular reads a regular file of a limited size. It does not wait for the writer of a pipe.
func readRegular(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w: it is not a regular file", path, ErrUnlike)
	}
	text, err := io.ReadAll(io.LimitReader(f, kubeconfigLimit+1))
	if err == nil && len(text) > kubeconfigLimit {
		err = fmt.Errorf("%s: %w: it is larger than 1 MiB", path, ErrUnlike)
	}
	return text, err
}

// asWritten returns an error if config has a field that certs.WriteKubeconfig does not set.
func asWritten(config *clientcmdapi.Config) error {
	secure := true
	for name, c := range config.Clusters {
		want := clientcmdapi.Cluster{Server: c.Server, CertificateAuthorityData: c.CertificateAuthorityData, DisableCompression: c.DisableCompression,
			LocationOfOrigin: c.LocationOfOrigin, Extensions: c.Extensions}
		switch {
		case !reflect.DeepEqual(*c, want):
			return fmt.Errorf("cluster %q has more than server, certificate-authority-data and disable-compression", name)
		case strings.HasPrefix(c.Server, "http://"): // the insecure listener
			secure = false
		case !strings.HasPrefix(c.Server, "https://"):
			return fmt.Errorf("cluster %q has a server without https://", name)
		case len(c.CertificateAuthorityData) == 0:
			return fmt.Errorf("cluster %q has no certificate-authority-data", name)
		}
	}
	for name, u := range config.AuthInfos {
		want := clientcmdapi.AuthInfo{ClientCertificateData: u.ClientCertificateData, ClientKeyData: u.ClientKeyData,
			LocationOfOrigin: u.LocationOfOrigin, Extensions: u.Extensions}
		switch {
		case !reflect.DeepEqual(*u, want):
			return fmt.Errorf("user %q has more than client-certificate-data and client-key-data", name)
		case secure && (len(u.ClientCertificateData) == 0 || len(u.ClientKeyData) == 0):
			return fmt.Errorf("user %q has no client-certificate-data or no client-key-data", name)
		}
	}
	return nil
}
