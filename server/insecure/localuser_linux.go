package insecure

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// peerCredentials asks the kernel for the peer's user and groups (SO_PEERCRED and SO_PEERGROUPS, unix(7)).
func peerCredentials(c syscall.Conn) (credentials, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return credentials{}, err
	}
	var got credentials
	var failure error
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			failure = os.NewSyscallError("getsockopt", err)
			return
		}
		groups, err := peerGroups(fd)
		got, failure = credentials{cred.Uid, append(groups, cred.Gid)}, err
	})
	if err != nil {
		return credentials{}, err
	}
	return got, failure
}

// peerGroups returns the peer's supplementary groups. Package unix has no function for them.
func peerGroups(socket uintptr) ([]uint32, error) {
	groups := make([]uint32, 64)
	for {
		size := uint32(len(groups) * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, socket, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch errno {
		case 0:
			return groups[:size/4], nil
		case unix.ERANGE: // size is what it needs
			groups = make([]uint32, size/4)
		default:
			return nil, os.NewSyscallError("getsockopt", errno)
		}
	}
}
