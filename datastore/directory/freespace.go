package directory

import "golang.org/x/sys/unix"

// FreeBytes returns how much users other than root can still write to the file system of dir.
// It ignores quotas.
func FreeBytes(dir string) (int64, bool) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, false
	}
	return int64(s.Bavail) * int64(s.Bsize), true
}
