package insecure

import (
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/karve-k8s/karve/internal/procnet"
)

// OwnersKnown is true if this system reports which user opened a connection.
const OwnersKnown = true

// tcpSocket is what the kernel tells about a TCP socket.
type tcpSocket struct {
	local, remote netip.AddrPort
	state         uint8
	uid           uint32
	inode         uint64
	cgroup        uint64 // identifier of the control group; 0: not told
}

// owned reports whether a process holds the socket, so that its uid is that of a user.
//
// The kernel shows a socket that no process holds (closed while data is in flight, or in
// TIME_WAIT) with inode 0 and uid 0, which is not root. A listening socket on the same port is
// not an end of a connection. A client that has shut down its sending side (FIN_WAIT) and
// waits for the answer still holds its socket.
func (s tcpSocket) owned() bool {
	switch s.state {
	case procnet.Established, procnet.FinWait1, procnet.FinWait2, procnet.CloseWait:
		return s.inode != 0
	}
	return false
}

// socketOwner returns the owner of the TCP socket with these addresses, which a process in this
// network namespace holds. The error wraps errNoSocket if there is none.
func socketOwner(local, remote netip.AddrPort) (owner, error) {
	s, err := diagSocket(local, remote)
	if err != nil {
		return owner{}, err
	}
	if !s.owned() {
		return owner{}, errNoSocket
	}
	return owner{s.uid, s.cgroup, s.inode}, nil
}

// connAlive reports whether the server's end of the connection still exists for the kernel. It
// is false for a connection without a file descriptor.
func connAlive(c net.Conn) bool {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		alive = err == nil && (info.State == procnet.Established || info.State == procnet.CloseWait)
	})
	return err == nil && alive
}
