package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/datastore"
)

// markerFile says, in a directory, that what is in it is Karve's: install.sh gives no other
// directory to another user, and karve-uninstall.sh removes no other.
const (
	markerFile   = "karve-data"
	markerBegins = "Karve keeps the data of a cluster here" // what the scripts look for
	markerText   = markerBegins + " (https://github.com/karve-k8s/karve).\n" +
		"install.sh and karve-uninstall.sh change only directories that have this file.\n"
)

// mark marks a directory whose lock is held, if it was empty or Karve has made what is in
// it. A directory with other files stays unmarked: a server that was once started in the
// wrong place must not make all of it Karve's.
func mark(dir string) error {
	path := filepath.Join(dir, markerFile)
	if text, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(text), markerBegins) {
		return nil
	}
	if !karves(dir) {
		return nil
	}
	// Without fsync, which would take time at every first start: should a power cut leave an
	// empty file, the next start writes it again.
	err := os.WriteFile(path, []byte(markerText), 0o600)
	if errors.Is(err, fs.ErrPermission) {
		return nil // somebody else's; whoever starts there has other problems
	} else if err != nil {
		return fmt.Errorf("mark the directory as Karve's: %w", err)
	}
	return nil
}

// karves tells whether Karve has made what is in a directory, or may: nothing is there but
// the lock, and certificates that were put there for the first start.
func karves(dir string) bool {
	if datastore.HasDatabase(dir) {
		return true
	}
	infos, _ := certs.List(filepath.Join(dir, "certs"), time.Now()) // what cannot be read is not known to be Karve's
	for _, info := range infos {
		if info.Problem == "" && info.Kind != certs.KindKey && !info.UserSupplied {
			return true
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		switch e.Name() {
		case "lock", "certs", "lost+found", markerFile:
		default:
			return false
		}
	}
	return true
}
