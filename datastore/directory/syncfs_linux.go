package directory

import (
	"os"

	"golang.org/x/sys/unix"
)

// settleDeletions has the file system of dir finish what is under way: btrfs counts what was
// removed as used until then, up to 30 s.
func settleDeletions(dir string) {
	f, err := os.Open(dir)
	if err != nil {
		return
	}
	defer f.Close()
	_ = unix.Syncfs(int(f.Fd())) // it counts later, then
}

// allocate has the file system set size bytes aside for a file, or none. One that cannot
// do that takes them as they are written.
func allocate(f *os.File, size int64) error {
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size); IsFull(err) {
		return err
	}
	return nil
}
