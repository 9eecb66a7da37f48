package servers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/ownership"
)

// DataDirVariable is the variable of --data-dir.
const DataDirVariable = "KARVE_DATA_DIR"

// Choose returns the data directory of the server that a command is about if nothing names one: that of a server which
// runs in a usual directory, else the one that [Own] finds, else a usual one whose server has stopped. It is empty if
// there is none. If own finds several, that is an error.
func Choose(own func(usual ...string) []string, usual ...string) (string, error) {
	for _, dir := range usual {
		_, held, err := directory.Holder(dir)
		if (held || err != nil) && (Readable(filepath.Join(dir, KubeconfigName)) || Answers(dir)) {
			return dir, nil
		}
	}
	switch dirs := own(usual...); {
	case len(dirs) == 1:
		return dirs[0], nil
	case len(dirs) > 1:
		return "", fmt.Errorf("%d servers of this user run, in %s: choose one with --data-dir DIR or %s", len(dirs), strings.Join(dirs, ", "), DataDirVariable)
	}
	for _, dir := range usual {
		if Readable(filepath.Join(dir, KubeconfigName)) {
			return dir, nil
		}
	}
	return "", nil
}

// Readable reports whether this user can read a file. It does not wait for the writer of a pipe.
func Readable(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err == nil {
		f.Close()
	}
	return err == nil
}

// Answers reports whether this user can connect to the socket with the API in a data directory.
func Answers(dir string) bool {
	c, err := control.DialSocket(context.Background(), filepath.Join(dir, control.APISocket))
	if err == nil {
		c.Close()
	}
	return err == nil
}

// Own returns the data directories of the servers of this user that run. Root does not use another user's unless it
// is named. usual is as in [Running].
func Own(usual ...string) []string {
	running, _ := Running(usual...) // without /proc there are only the usual ones
	return Owned(running)
}

// Owned returns the data directories of those servers that are this user's own.
func Owned(running []Server) (dirs []string) {
	for _, s := range running {
		info, err := os.Stat(filepath.Join(s.DataDir, KubeconfigName))
		if err == nil && ownership.Mine(info) && !Foreign(s.DataDir) {
			dirs = append(dirs, s.DataDir)
		}
	}
	return dirs
}

// Foreign reports whether this process is root's and dir is another user's, or may be: where everybody may write, such as in /tmp, anybody can hold a
// lock, and make a link to a file of root's and then change it.
func Foreign(dir string) bool {
	_, foreign, err := ownership.Foreign(dir)
	if foreign || err != nil || os.Geteuid() != 0 {
		return foreign || err != nil
	}
	info, err := os.Stat(dir)
	return err == nil && info.Mode().Perm()&0o002 != 0
}
