package sqlitefile

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// syncData makes the contents of a file durable, and of its metadata what is needed to read them.
func syncData(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
