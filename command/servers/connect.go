package servers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/karve-k8s/karve/datastore/directory"
)

// Connect returns the administrator's configuration for the server that runs in a data directory. If
// kubeconfig is not empty, that file names the server instead. The error says which option or
// command helps.
func Connect(dir, kubeconfig string) (*rest.Config, error) {
	if kubeconfig != "" {
		return fromFile(kubeconfig)
	}
	config, err := Kubeconfig(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, NoKubeconfig(dir)
	} else if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w (run this as root or the server's user)", err)
	} else if err != nil {
		return nil, err
	}
	_, held, err := directory.Holder(dir)
	if err != nil {
		return nil, fmt.Errorf("%w (run this as root or the server's user)", err)
	}
	if !held {
		return nil, fmt.Errorf("no server runs in %s: start it, or name the data directory of another with --data-dir", dir)
	}
	return config, nil
}

// Client returns a client of the administrator for the server that runs in a data directory. It has no rate limit: the
// server limits.
func Client(dir string) (kubernetes.Interface, error) {
	config, err := Connect(dir, "")
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return kubernetes.NewForConfig(config)
}

// fromFile reads a kubeconfig of the user's own. It does not pass on what the parser says, which may
// quote the file.
func fromFile(path string) (*rest.Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	if loaded, err := clientcmd.Load(text); err != nil || len(loaded.Clusters) == 0 {
		return nil, fmt.Errorf("--kubeconfig: %s is not a kubeconfig with a cluster: name another file", path)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig %s: %w", path, err)
	}
	return config, nil
}

// NoKubeconfig is the error for a data directory without the admin's kubeconfig, which a server writes
// when it is ready.
func NoKubeconfig(dir string) error {
	path := filepath.Join(dir, KubeconfigName)
	if !exists(dir) {
		return fmt.Errorf("there is no directory %s: start a server with this --data-dir, or name that of another", dir)
	}
	if pid, held, err := directory.Holder(dir); err == nil && held {
		return fmt.Errorf("%s does not exist yet: the server (process %d) is starting, and writes it when it is ready", path, pid)
	}
	return fmt.Errorf("%s does not exist: no server has been ready with this --data-dir", path)
}
