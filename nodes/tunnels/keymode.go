package tunnels

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// checkMode refuses a private key that other users may read, or that is another user's.
func checkMode(path string, info fs.FileInfo) error {
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("%s has mode %04o, so other users may use it: run chmod 0600 %[1]s", path, mode)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, and this server runs as user %d: run chown %[3]d %[1]s", path, stat.Uid, os.Geteuid())
	}
	return nil
}
