package directory

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// hold opens a directory that this process has just made, and returns a path that leads to it, whoever exchanges its name. SQLite
// follows that path to the name.
func hold(name string) (*os.File, string, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, name, &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Readdirnames(1); !errors.Is(err, io.EOF) {
		f.Close()
		return nil, name, fmt.Errorf("%s: another user has put a directory in place of this new one", name)
	}
	return f, fmt.Sprintf("/proc/self/fd/%d", fd), nil
}
