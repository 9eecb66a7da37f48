// Package datadir has the commands that work on a data directory: datastore, snapshot, reset,
// status, certs and kubeconfig. If a server runs there, they ask it for what only the server
// can do.
package datadir

import (
	"os"
	"path/filepath"
)

// Exists tells whether path exists.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Absolute returns dir as an absolute path. An empty dir stays empty.
func Absolute(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil && dir != "" {
		return abs
	}
	return dir
}
