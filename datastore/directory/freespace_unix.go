//go:build unix

package directory

import "golang.org/x/sys/unix"

// freeBytes is what users that are not root can still write to the file system of dir.
// Quotas do not count.
func freeBytes(dir string) (int64, bool) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, false
	}
	return int64(s.Bavail) * int64(s.Bsize), true
}
