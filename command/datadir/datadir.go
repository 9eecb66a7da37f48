// Package datadir is the commands that work on a data directory: datastore, snapshot, reset,
// status, certs and kubeconfig. A server may run there: what only it can do they ask of it.
package datadir

import (
	"os"
	"path/filepath"
)

// Exists tells whether there is anything at path.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Absolute is dir as an absolute path; empty stays empty.
func Absolute(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil && dir != "" {
		return abs
	}
	return dir
}
