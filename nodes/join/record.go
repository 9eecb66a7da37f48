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
	// Files that were written. Before is the text of a file that was there, which comes back with
	// the mode and owner in Attributes.
	Files      []string              `json:"files,omitempty"`
	Before     map[string]string     `json:"before,omitempty"`
	Attributes map[string]attributes `json:"attributes,omitempty"`
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
	SSH *access `json:"ssh,omitempty"`
}

// attributes of a file that come back with its text.
type attributes struct {
	Mode fs.FileMode `json:"mode"`
	UID  int         `json:"uid"`
	GID  int         `json:"gid"`
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
		if err := m.keep(r, f.path); err != nil {
			return err
		}
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

// keep adds a file to the record as it is now, so that takeBack brings it back.
func (m *Machine) keep(r *record, path string) error {
	if slices.Contains(r.Files, path) {
		return nil
	}
	before, err := os.ReadFile(m.path(path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil {
		info, err := os.Stat(m.path(path))
		if err != nil {
			return err
		}
		if r.Before == nil {
			r.Before, r.Attributes = map[string]string{}, map[string]attributes{}
		}
		uid, gid := ownerOf(info)
		r.Before[path], r.Attributes[path] = string(before), attributes{info.Mode().Perm(), uid, gid}
	}
	r.Files = append(r.Files, path)
	return nil
}

// takeBack undoes put.
func (m *Machine) takeBack(r *record) error {
	var wrong []error
	for _, path := range r.Files {
		if before, ok := r.Before[path]; ok {
			old := r.Attributes[path]
			if err := os.MkdirAll(m.path(filepath.Dir(path)), 0o755); err != nil { // somebody may have removed the package
				wrong = append(wrong, err)
				continue
			}
			wrong = append(wrong, atomicfile.Write(m.path(path), []byte(before), old.Mode), os.Chown(m.path(path), old.UID, old.GID))
		} else if err := os.Remove(m.path(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			wrong = append(wrong, err)
		}
	}
	return errors.Join(wrong...)
}
