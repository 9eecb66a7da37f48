package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	datadir "github.com/karve-k8s/karve/datastore/directory"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/internal/atomicfile"
)

// markerFile is the name of a file that marks a directory as Karve's. install.sh changes the owner
// only of such a directory, and karve-uninstall.sh removes only such a directory.
const (
	markerFile   = "karve-data"
	markerBegins = "Karve keeps the data of a cluster here" // what the scripts look for
	markerText   = markerBegins + " (https://github.com/karve-k8s/karve).\n" +
		"install.sh and karve-uninstall.sh change only directories that have this file.\n"
)

// ownNames are the names of everything that Karve creates at the top of its directories, as
// patterns for path.Match: files of the server, of the datastore (also temporary and kept ones), of
// snapshots and of forks. lost+found, which file systems create, is among them. install.sh has the
// same list.
var ownNames = [...]string{
	markerFile, "lock", "lock.host", "certs", "flexvolume", "admin.kubeconfig", "admin.kubeconfig.copy",
	"karve.sock", "kine.sock", ".control", "fork-of", "fork-unfinished", "snapshot", "snapshot.before-reset-*",
	"mvcc.db", "mvcc.db-*", "mvcc.db.*", "state.db", "state.db-*", "state.db.*",
	".*.partial", ".karve-*.tmp", ".snapshot-*", ".room-*", ".writable-*", ".owner-*", "lost+found",
}

// leftBehind matches the names of files and directories that Karve needs for moments only. A kill leaves them
// behind. Some have keys, and those of earlier releases all objects.
var leftBehind = regexp.MustCompile(`^\.(karve-[0-9]+\.tmp|(snapshot|room|writable|owner)-[0-9]+|.+\.[0-9]+\.partial)$`)

// leftAge is the age from which on they are no longer in use: commands create them beside a running server.
const leftAge = time.Hour

// removeLeft removes what killed processes have left in a directory that Karve has marked.
func removeLeft(dir string) {
	datadir.RemoveAbandoned(dir)
	if _, err := os.Lstat(filepath.Join(dir, markerFile)); err != nil {
		return
	}
	entries, _ := os.ReadDir(dir) // a start that needs to read it reports the error
	for _, e := range entries {
		if info, err := e.Info(); err == nil && leftBehind.MatchString(e.Name()) && time.Since(info.ModTime()) > leftAge {
			os.RemoveAll(filepath.Join(dir, e.Name())) // the next start removes what stays
		}
	}
}

// mark marks a directory if Karve has created everything in it. The caller holds its lock. A
// directory with other files stays unmarked, even if it has a database of Karve's: the scripts
// would change the owner of those files, too, or remove them.
func mark(dir string) error {
	file := filepath.Join(dir, markerFile)
	if text, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(text), markerBegins) {
		return nil
	}
	if !karves(dir) {
		return nil
	}
	err := atomicfile.Write(file, []byte(markerText), 0o600)
	if errors.Is(err, fs.ErrPermission) {
		return nil // it belongs to another user; the start fails for other reasons
	} else if err != nil {
		return fmt.Errorf("mark the directory as Karve's: %w", err)
	}
	return nil
}

// mayStayUnmarked reports whether a server starts despite this error of mark. It does on a full
// disk, on which it can still free space, and on a read-only one.
func mayStayUnmarked(err error) bool { return datadir.IsFull(err) || errors.Is(err, syscall.EROFS) }

// karves reports whether Karve has created, or may have created, everything in a directory. Every
// name has to be one of ownNames. In addition, the directory has to contain Karve's database or a
// certificate that Karve has issued, or nothing but the lock and certificates that a user supplied
// for the first start. A state.db proves nothing, because k3s has one, too.
func karves(dir string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	fresh := true
	for _, e := range entries {
		if !ownName(e.Name()) {
			return false
		}
		switch e.Name() {
		case "lock", "lock.host", "certs", "lost+found", markerFile:
		default:
			fresh = false
		}
	}
	if fresh && certificatesOnly(filepath.Join(dir, "certs")) || sqlitefile.IsDatabase(filepath.Join(dir, datastore.EngineFile)) {
		return true
	}
	infos, _ := certs.List(filepath.Join(dir, "certs"), time.Now()) // an unreadable certificate proves nothing
	return slices.ContainsFunc(infos, func(i certs.Info) bool {
		return i.Problem == "" && i.Kind != certs.KindKey && !i.UserSupplied
	})
}

func ownName(name string) bool {
	return slices.ContainsFunc(ownNames[:], func(pattern string) bool {
		same, err := path.Match(pattern, name)
		return same && err == nil
	})
}

// certificatesOnly reports whether a directory does not exist or has only files with the names of
// Karve's certificates.
func certificatesOnly(dir string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	for _, e := range entries {
		name, extension := e.Name(), filepath.Ext(e.Name())
		name = strings.TrimSuffix(strings.TrimSuffix(name, extension), "-signer") // a CA of the user's may have signers
		if extension != ".crt" && extension != ".key" || !slices.Contains(certs.Names(), certs.Name(name)) {
			return false
		}
	}
	return true
}
