package server

import (
	"context"
	"os"

	"golang.org/x/sys/unix"
)

// watchAddresses sends when an address of this machine is added or removed. It
// listens to the kernel (rtnetlink(7)) and costs nothing in between. Where the
// kernel will not have it, the hourly look has to do.
func watchAddresses(ctx context.Context) <-chan struct{} {
	changed := make(chan struct{}, 1)
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return changed
	}
	groups := uint32(1<<(unix.RTNLGRP_IPV4_IFADDR-1) | 1<<(unix.RTNLGRP_IPV6_IFADDR-1))
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return changed
	}
	// A non-blocking file is the runtime poller's: Close ends a Read.
	socket := os.NewFile(uintptr(fd), "rtnetlink")
	context.AfterFunc(ctx, func() { socket.Close() })
	go func() {
		buffer := make([]byte, 8192)
		for {
			// What happened does not matter, nor that a burst overran the
			// buffer (ENOBUFS): the addresses are read anew.
			if _, err := socket.Read(buffer); err != nil && ctx.Err() != nil {
				return
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	return changed
}
