//go:build unix

package certs

import (
	"errors"
	"os"
	"syscall"
)

// keepOwner gives f the owner of the file it replaces, so that root merging
// into a user's kubeconfig does not take it from the user. Who is not root
// cannot, and need not: the file is then theirs.
func keepOwner(f *os.File, like os.FileInfo) error {
	st, ok := like.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 {
		return nil
	}
	return f.Chown(int(st.Uid), int(st.Gid))
}

// unsyncable reports whether err says that directories cannot be synced here.
func unsyncable(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP)
}
