//go:build unix

package manifests

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// safe refuses what a user other than root and the server's own could change. The modes of a read-only
// mount, such as that of a ConfigMap, mean nothing.
func safe(path string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	foreign := ok && stat.Uid != 0 && int(stat.Uid) != os.Geteuid()
	if !foreign && info.Mode().Perm()&0o022 == 0 || errors.Is(unix.Access(path, unix.W_OK), unix.EROFS) {
		return nil
	}
	if foreign {
		return fmt.Errorf("%s belongs to user %d, who could become an administrator: run chown %d %[1]s", path, stat.Uid, os.Geteuid())
	}
	return fmt.Errorf("%s has mode %04o, so other users could become administrators: run chmod go-w %[1]s", path, info.Mode().Perm())
}
