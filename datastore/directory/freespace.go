package directory

import (
	"math"

	"golang.org/x/sys/unix"
)

// FreeBytes returns how much users other than root can still write to the file system of dir.
// It ignores quotas.
func FreeBytes(dir string) (int64, bool) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, false
	}
	return int64(s.Bavail) * int64(s.Bsize), true
}

// fileSizeLimit returns how large a file this process may write, if that is limited (ulimit -f).
func fileSizeLimit() (limit int64, limited bool) {
	var r unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_FSIZE, &r)
	return int64(r.Cur), err == nil && uint64(r.Cur) < math.MaxInt64 // RLIM_INFINITY is not less on any system
}
