package socket

import "syscall"

// private sets the mode of a socket before it has a name, so that nobody else connects before Listen's chmod, whatever the umask
// and the mode of the directory are. Linux gives the name that mode; a system that does not set it leaves the chmod.
func private(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), 0o600) })
}
