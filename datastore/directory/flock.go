package directory

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockFlags follow no link, wait for nobody, and make no terminal that of this process.
const lockFlags = unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY

func tryLock(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errHeld
	}
	return err
}
