package datastore

import (
	"os"

	"golang.org/x/sys/unix"
)

// settleQuota has the file system of dir finish what is under way: btrfs counts what was
// removed as used until then, up to 30 s.
func settleQuota(dir string) {
	f, err := os.Open(dir)
	if err != nil {
		return
	}
	defer f.Close()
	_ = unix.Syncfs(int(f.Fd())) // it counts later, then
}
