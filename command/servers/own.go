package servers

import (
	"os"
	"path/filepath"

	"github.com/karve-k8s/karve/internal/ownership"
)

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
