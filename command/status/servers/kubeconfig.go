package servers

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/ownership"
)

// KubeconfigName is the file in a data directory that has the admin's credentials.
const KubeconfigName = "admin.kubeconfig"

// kubeconfigLimit is the size of the largest file that is read. A server writes about 6 KiB.
const kubeconfigLimit = 1 << 20

// ErrUnlike means that a kubeconfig lacks what a server writes, or has more. What was added could start a
// program, send a file of the reader's to a server, or make the reader trust any server.
var ErrUnlike = errors.New("it is not as a server writes it")

// Kubeconfig returns the configuration in the admin's kubeconfig of a data directory, which may be
// another user's. It uses nothing in the file but what a server writes, and returns [ErrUnlike] if that is not there.
func Kubeconfig(dir string) (*rest.Config, error) {
	made, _, err := WholeKubeconfig(dir)
	return made, err
}

// WholeKubeconfig is [Kubeconfig], and everything in the file that the server has written.
func WholeKubeconfig(dir string) (*rest.Config, *clientcmdapi.Config, error) {
	path := filepath.Join(dir, KubeconfigName)
	text, err := readRegular(path)
	if err != nil {
		return nil, nil, err
	}
	all, err := clientcmd.Load(text)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	own := certs.OwnKubeconfig(all)
	cluster, user := cmp.Or(own.Clusters[own.CurrentContext], &clientcmdapi.Cluster{}), cmp.Or(own.AuthInfos[own.CurrentContext], &clientcmdapi.AuthInfo{})
	secure := len(cluster.CertificateAuthorityData) > 0 && len(user.ClientCertificateData) > 0 && len(user.ClientKeyData) > 0
	if !strings.HasPrefix(cluster.Server, "http://") && !(strings.HasPrefix(cluster.Server, "https://") && secure) { // http: the insecure listener
		return nil, nil, fmt.Errorf("%s: %w: the context %q lacks a URL, an authority or a user", path, ErrUnlike, own.CurrentContext)
	}
	made, err := clientcmd.NewDefaultClientConfig(*own, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	made.Proxy = Direct
	return made, own, nil
}

// AsWritten returns [ErrUnlike] if the admin's kubeconfig of a data directory has more than the server has written.
func AsWritten(dir string) error {
	_, own, err := WholeKubeconfig(dir)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, KubeconfigName)
	has, err := readRegular(path)
	if want, _ := clientcmd.Write(*own); err != nil || !bytes.Equal(has, want) {
		return fmt.Errorf("%s: %w: something was added", path, ErrUnlike)
	}
	return nil
}

// KubeconfigText returns the admin's kubeconfig of a data directory for another file, or for another reader: only what
// the server has written. Root reads it as the owner of the directory.
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
