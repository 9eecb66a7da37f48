package process

import (
	"io/fs"
	"os"
	"syscall"
)

// mine reports whether a directory belongs to this user, and no other can change it.
func mine(info fs.FileInfo) bool {
	return int(info.Sys().(*syscall.Stat_t).Uid) == os.Geteuid() && info.Mode().Perm()&0o022 == 0
}
