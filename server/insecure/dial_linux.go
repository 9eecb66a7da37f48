package insecure

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// dialled has the inodes of the sockets that dial has opened.
var dialled sync.Map

// dial notes the socket before it connects, because the guard may look for it before dial returns.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	var mu sync.Mutex
	var noted []uint64
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) {
			inode, err := socketInode(int(fd))
			if failed = err; err == nil {
				dialled.Store(inode, nil)
				mu.Lock()
				noted = append(noted, inode) // one for each address that is tried
				mu.Unlock()
			}
		})
		if err != nil {
			return err
		}
		return failed
	}}
	forget := sync.OnceFunc(func() {
		mu.Lock()
		defer mu.Unlock()
		for _, inode := range noted {
			dialled.Delete(inode)
		}
	})
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		forget()
		return nil, err
	}
	return &dialledConn{c, forget}, nil
}

type dialledConn struct {
	net.Conn
	forget func()
}

func (c *dialledConn) Close() error {
	err := c.Conn.Close()
	c.forget()
	return err
}

// heldHere reports whether this process holds the socket with this inode, unless it is dial's.
func heldHere(inode uint64) (bool, error) {
	if _, ok := dialled.Load(inode); ok {
		return false, nil
	}
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return false, fmt.Errorf("list the server's own connections: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return false, fmt.Errorf("list the server's own connections: %w", err)
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if found, err := socketInode(fd); err == nil && found == inode {
			return true, nil
		}
	}
	return false, nil
}

// socketInode returns the inode of a socket. The error is EBADF for one that is closed meanwhile.
func socketInode(fd int) (uint64, error) {
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	if s.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return 0, os.NewSyscallError("fstat", unix.ENOTSOCK)
	}
	return s.Ino, nil
}
