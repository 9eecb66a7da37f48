package apiserver

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// throwAwayFile creates a temporary file in memory, so that a full disk does not make a
// configuration invalid. Without /proc, the file is in dir.
func throwAwayFile(dir string, content []byte) (path string, remove func(), err error) {
	fd, err := unix.MemfdCreate("karve-check", unix.MFD_CLOEXEC)
	if err != nil {
		return temporaryFile(dir, content)
	}
	f := os.NewFile(uintptr(fd), "karve-check")
	path = fmt.Sprintf("/proc/self/fd/%d", fd)
	if _, err = f.Write(content); err == nil {
		_, err = os.ReadFile(path)
	}
	if err != nil {
		f.Close()
		return temporaryFile(dir, content)
	}
	return path, func() { f.Close() }, nil
}
