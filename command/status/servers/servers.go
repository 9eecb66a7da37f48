// Package servers finds the control planes that run on this machine.
package servers

import (
	"os"
	"path/filepath"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore/directory"
)

// Server is a control plane that runs.
type Server struct {
	DataDir string
	PID     int
}

// serverIn returns the server that holds the lock of a data directory. A directory of which only
// the datastore is used, or that of a `karve run` around its server's, has neither certificates nor
// a control socket.
func serverIn(dir string) (Server, bool) {
	if !exists(filepath.Join(dir, "certs")) && !exists(filepath.Join(dir, control.Socket)) {
		return Server{}, false
	}
	// Reading anything else could block.
	if info, err := os.Lstat(filepath.Join(dir, "lock")); err != nil || !info.Mode().IsRegular() {
		return Server{}, false
	}
	pid, held, err := directory.Holder(dir)
	return Server{dir, pid}, held && err == nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
