package sqlitefile

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// syncsItself says that a File syncs the commits of mode full itself. modernc.org/sqlite is
// compiled without HAVE_FDATASYNC: its fsync also writes the time of the last change of the WAL,
// which takes a transaction of the file system's journal for each commit.
const syncsItself = true

// syncData makes the contents of a file durable, and of its metadata what is needed to read them.
func syncData(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
