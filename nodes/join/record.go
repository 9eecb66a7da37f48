package join

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/nodes/join/sshkeys"
)

// Where everything of a node is.
const (
	configDir      = "/etc/karve-node"
	recordFile     = configDir + "/installed.json"
	bootstrapFile  = configDir + "/bootstrap.kubeconfig"
	kubeconfigFile = configDir + "/kubelet.kubeconfig" // the kubelet writes it
	caFile         = configDir + "/ca.crt"
	kubeletConfig  = configDir + "/kubelet.yaml"
	libDir         = "/usr/local/lib/karve-node"
	kubeletFile    = libDir + "/kubelet"
	kubeletDir     = "/var/lib/kubelet"
	modulesFile    = "/etc/modules-load.d/karve-node.conf"
	sysctlFile     = "/etc/sysctl.d/90-karve-node.conf"
	networkName    = "10-karve.conflist"
	bridge         = "karve0"
)

// record is what a join has changed, so that a removal undoes it and nothing else.
type record struct {
	Server  string `json:"server"`
	Node    string `json:"node"`
	Version string `json:"version,omitempty"` // of the kubelet
	// Files that were written. Their names are Karve's own, or there was no such file.
	Files []string `json:"files,omitempty"`
	// Packages that the join installed. A removal leaves them, and says so.
	Packages []string `json:"packages,omitempty"`
	// Runtime is containerd's socket.
	Runtime string `json:"runtime,omitempty"`
	// PodCIDRs are those that the Node had when the network of Pods got them; empty: the network's are not
	// the Node's.
	PodCIDRs []string `json:"podCIDRs,omitempty"`
	// OwnServer: the server is on this machine, and its uninstaller removes the node, too.
	OwnServer bool `json:"ownServer,omitempty"`
	// SSH is what lets the server log in; nil: the join was without --ssh-user.
	SSH *sshkeys.Access `json:"ssh,omitempty"`
}

// readRecord returns nil if Karve did not make this machine a node.
func (m *Machine) readRecord() (*record, error) {
	text, err := os.ReadFile(m.path(recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	r := &record{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s: %w", recordFile, err)
	}
	return r, nil
}

func (m *Machine) writeRecord(r *record) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(m.path(configDir), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(m.path(recordFile), append(text, '\n'), 0o600)
}

// file is one to place.
type file struct {
	path string
	text string
	mode fs.FileMode
}

// put records files, and then places them.
func (m *Machine) put(r *record, files ...file) error {
	for _, f := range files {
		r.keep(f.path)
	}
	if err := m.writeRecord(r); err != nil {
		return err
	}
	for _, f := range files {
		if err := os.MkdirAll(m.path(filepath.Dir(f.path)), 0o755); err != nil {
			return err
		}
		if err := atomicfile.Write(m.path(f.path), []byte(f.text), f.mode); err != nil {
			return err
		}
	}
	return nil
}

// keep adds a file to the record, so that takeBack removes it.
func (r *record) keep(path string) {
	if !slices.Contains(r.Files, path) {
		r.Files = append(r.Files, path)
	}
}

// takeBack undoes put.
func (m *Machine) takeBack(r *record) error {
	var wrong []error
	for _, path := range r.Files {
		wrong = append(wrong, removeIfThere(m.path(path)))
	}
	return errors.Join(wrong...)
}
