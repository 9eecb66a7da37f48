package server

import (
	"context"
	"os"
	"time"

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
	go readChanges(ctx, socket.Read, changed)
	return changed
}

// readChanges sends to changed whenever read returns, until ctx ends. What has happened
// does not matter: the receiver reads the addresses anew. That holds for an error as
// well, since the kernel tells by one that a burst did not fit (ENOBUFS). Errors that
// last are read ever more rarely, up to once a minute: that is how often addresses are
// looked at where nothing tells of them.
func readChanges(ctx context.Context, read func([]byte) (int, error), changed chan<- struct{}) {
	buffer := make([]byte, 8192)
	retry := delays(readRetry, readRetryLimit)
	for {
		_, err := read(buffer)
		if ctx.Err() != nil {
			return
		}
		select {
		case changed <- struct{}{}:
		default:
		}
		if err == nil {
			retry = delays(readRetry, readRetryLimit)
			continue
		}
		select {
		case <-time.After(retry.Step()):
		case <-ctx.Done():
			return
		}
	}
}

// The first and the longest delay after an error of the kernel's news.
const (
	readRetry      = 100 * time.Millisecond
	readRetryLimit = time.Minute
)
