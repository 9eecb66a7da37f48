package directory

import (
	"os"

	"golang.org/x/sys/unix"
)

// settleDeletions makes the file system of dir commit what is under way. Until then, for up to
// 30 s, btrfs counts removed files as used.
func settleDeletions(dir string) {
	f, err := os.Open(dir)
	if err != nil {
		return
	}
	defer f.Close()
	_ = unix.Syncfs(int(f.Fd())) // if this fails, the file system does so later by itself
}

// copiesOnWrite reports whether the file system of dir, btrfs, needs new space for each overwrite.
func copiesOnWrite(dir string) bool {
	var s unix.Statfs_t
	return unix.Statfs(dir, &s) == nil && uint32(s.Type) == unix.BTRFS_SUPER_MAGIC
}

// allocate reserves size bytes of the file system for a file, all of them or none. A file
// system that cannot do that allocates them as they are written.
func allocate(f *os.File, size int64) error {
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size); IsFull(err) {
		return err
	}
	return nil
}
