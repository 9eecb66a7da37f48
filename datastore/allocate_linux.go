package datastore

import (
	"os"
	"syscall"
)

// allocate gives a file blocks up to size; what is in it stays, and it gets no
// shorter. errors.ErrUnsupported: the file system has no such call.
func allocate(f *os.File, size int64) error {
	for {
		if err := syscall.Fallocate(int(f.Fd()), 0, 0, size); err != syscall.EINTR {
			return err
		}
	}
}
