//go:build unix

package server

import "golang.org/x/sys/unix"

// writable reports why this process may not create files in a directory.
func writable(dir string) error {
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}
