// Package marker knows which directories are Karve's: the server marks them, and an installation changes the
// owner only of such a directory, or of one that is vacant, and removes only such a directory.
package marker

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
	"github.com/karve-k8s/karve/internal/setup"
)

// File is the name of the file that marks a directory as Karve's.
const File = setup.ServerMarker

const (
	begins   = "Karve keeps the data of a cluster here" // releases that differ in the rest recognise it by this
	markText = begins + " (https://github.com/karve-k8s/karve).\n" +
		"karve install and karve uninstall change only directories that have this file.\n"
)

// ownNames are the names of everything that Karve creates at the top of its directories, as
// patterns for path.Match: files of the server, of the datastore (also temporary and kept ones), of
// snapshots and of forks. lost+found, which file systems create, is among them.
var ownNames = [...]string{
	File, "lock", "lock.host", "certs", "ssh", "flexvolume", "admin.kubeconfig", "admin.kubeconfig.*",
	"karve.sock", "karve-api.sock", "kine.sock", ".control", "fork-of", "fork-unfinished", "snapshot", "snapshot.before-reset-*", "backups", "from-backup", "audit",
	"mvcc.db", "mvcc.db-*", "mvcc.db.*", "state.db", "state.db-*", "state.db.*",
	".*.partial", ".karve-*.tmp", ".snapshot-*", ".room-*", ".writable-*", ".owner-*", "lost+found",
}

// leftBehind matches the names of files and directories that Karve needs for moments only. A kill leaves them
// behind. Some have keys, and those of earlier releases all objects.
var leftBehind = regexp.MustCompile(`^\.(control|karve-[0-9]+\.tmp|(snapshot|room|writable|owner)-[0-9]+|.+\.[0-9]+\.partial)$`)

// leftAge is the age from which on they are no longer in use: commands create them beside a running server.
const leftAge = time.Hour

// RemoveLeft removes what killed processes have left in a directory that Karve has marked.
func RemoveLeft(dir string) {
	datadir.RemoveAbandoned(dir)
	if _, err := os.Lstat(filepath.Join(dir, File)); err != nil {
		return
	}
	entries, _ := os.ReadDir(dir) // a start that needs to read it reports the error
	for _, e := range entries {
		if info, err := e.Info(); err == nil && leftBehind.MatchString(e.Name()) && time.Since(info.ModTime()) > leftAge {
			os.RemoveAll(filepath.Join(dir, e.Name())) // the next start removes what stays
		}
	}
}

// Mark marks a directory if Karve has created everything in it. The caller holds its lock. A
// directory with other files stays unmarked, even if it has a database of Karve's: an installation
// would change the owner of those files, too, or remove them.
func Mark(dir string) error {
	if marked(dir) || !Ours(dir) && !fresh(dir) {
		return nil
	}
	err := Write(dir)
	if errors.Is(err, fs.ErrPermission) {
		return nil // it belongs to another user; the start fails for other reasons
	} else if err != nil {
		return fmt.Errorf("mark the directory as Karve's: %w", err)
	}
	return nil
}

// Write marks a directory, whatever is in it.
func Write(dir string) error {
	return atomicfile.Write(filepath.Join(dir, File), []byte(markText), 0o600)
}

// MayStayUnmarked reports whether a server starts despite this error of [Mark]. It does on a full
// disk, on which it can still free space, and on a read-only one.
func MayStayUnmarked(err error) bool { return datadir.IsFull(err) || errors.Is(err, syscall.EROFS) }

// marked reports whether a directory has the mark. It is empty if a power cut or a full disk has emptied it.
func marked(dir string) bool {
	file := filepath.Join(dir, File)
	if !regular(file) {
		return false
	}
	content, err := os.ReadFile(file)
	return err == nil && strings.HasPrefix(string(content), begins)
}

// Ours reports whether Karve has created everything in a directory: it is marked; or every name in it is one
// of ownNames, and it has Karve's database or a certificate that Karve has issued. A state.db proves nothing,
// because k3s has one, too.
func Ours(dir string) bool {
	if marked(dir) {
		return true
	}
	if _, own := names(dir); !own {
		return false
	}
	if database := filepath.Join(dir, datastore.EngineFile); regular(database) && sqlitefile.IsDatabase(database) {
		return true
	}
	certificates := filepath.Join(dir, "certs")
	if info, err := os.Lstat(certificates); err != nil || !info.IsDir() {
		return false
	}
	infos, _ := certs.List(certificates, time.Now()) // an unreadable certificate proves nothing
	return slices.ContainsFunc(infos, func(i certs.Info) bool {
		return i.Problem == "" && i.Kind != certs.KindKey && !i.UserSupplied
	})
}

// Vacant reports whether Karve may take a directory: it does not exist, or has nothing but certificates that a
// user supplied for the first start.
func Vacant(dir string) bool {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return true
	}
	return fresh(dir)
}

// fresh reports whether a directory has nothing but a lock and certificates that a user supplied.
func fresh(dir string) bool {
	all, own := names(dir)
	for _, name := range all {
		switch name {
		case "lock", "lock.host", "certs", "lost+found", File:
		default:
			return false
		}
	}
	return own && certificatesOnly(filepath.Join(dir, "certs"))
}

// names lists a directory, and reports whether all of its names are of ownNames.
func names(dir string) (all []string, own bool) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all, err == nil && !slices.ContainsFunc(all, func(name string) bool { return !OwnName(name) })
}

// regular reports whether path is a file, and no link to one: in a directory of another user's, a link may lead
// anywhere.
func regular(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular()
}

// OwnName reports whether Karve gives this name to a file of a data directory.
func OwnName(name string) bool {
	return slices.ContainsFunc(ownNames[:], func(pattern string) bool {
		same, err := path.Match(pattern, name)
		return same && err == nil
	})
}

// certificatesOnly reports whether a directory does not exist or has only files with the names of
// Karve's certificates.
func certificatesOnly(dir string) bool {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	} else if err != nil || !info.IsDir() {
		return false
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
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
