package servers

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/datastore/directory"
)

// Connect returns the administrator's configuration for the server that runs in a data directory. The error says which option or
// command helps.
func Connect(dir string) (*rest.Config, error) {
	config, err := Kubeconfig(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, None(dir)
	} else if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w (run this as root or the server's user)", err)
	} else if err != nil {
		return nil, err
	}
	if _, held, err := directory.Holder(dir); err != nil || !held {
		return nil, None(dir)
	}
	return config, nil
}

// Client returns a client of the administrator for the server that runs in a data directory, and its configuration. It has no rate limit:
// the server limits.
func Client(dir string) (kubernetes.Interface, *rest.Config, error) {
	config, err := Connect(dir)
	if err != nil {
		return nil, nil, err
	}
	config.QPS, config.Timeout = -1, requestTimeout
	client, err := kubernetes.NewForConfig(config)
	return client, config, err
}

// requestTimeout limits each request of [Client].
const requestTimeout = 30 * time.Second

// None is the error of a command that needs the server of a data directory, where no server answers or none has been started.
func None(dir string) error {
	const remedy = "start one with karve server, or name the data directory of another with --data-dir or " + DataDirVariable
	switch _, held, err := Holder(dir); {
	case err != nil:
		return fmt.Errorf("no server runs in %s that this user may use: %w", dir, err)
	case held:
		return fmt.Errorf("the server in %s is not ready: karve wait --data-dir %[1]s waits for it, and says for what it waits", dir)
	case !exists(filepath.Join(dir, "certs")):
		return fmt.Errorf("no server has been started in %s: %s", dir, remedy)
	}
	return fmt.Errorf("no server runs in %s: %s", dir, remedy)
}

// Holder is [directory.Holder]. Its error says who may look.
func Holder(dir string) (pid int, held bool, err error) {
	if pid, held, err = directory.Holder(dir); errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w (run this as root or the server's user)", err)
	}
	return pid, held, err
}
