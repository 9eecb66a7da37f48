package insecure

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Sizes of the messages of NETLINK_SOCK_DIAG (include/uapi/linux/inet_diag.h).
const (
	diagHeaderLen  = unix.SizeofNlMsghdr
	diagSocketID   = 48 // struct inet_diag_sockid
	diagRequestLen = diagHeaderLen + 8 + diagSocketID
	diagReplyLen   = 4 + diagSocketID + 5*4 // struct inet_diag_msg

	// The attribute with the identifier of the control group in which the socket was made, 64
	// bits, since Linux 5.9.
	diagCgroupID = 21 // INET_DIAG_CGROUP_ID
)

// errBadReply means that a netlink message does not have the documented form.
var errBadReply = errors.New("reading the kernel's answer: malformed message")

// diagSocket asks the kernel for the one TCP socket with these addresses, in any state
// (sock_diag(7)). The error wraps errNoSocket if there is none, if it is bound to a network device,
// or if the kernel lacks tcp_diag, which it does not tell apart. DESIGN.md says why no library does
// this.
func diagSocket(local, remote netip.AddrPort) (tcpSocket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return tcpSocket{}, os.NewSyscallError("socket(NETLINK_SOCK_DIAG)", err)
	}
	defer unix.Close(fd)
	// The kernel answers before sendto returns. The limit is for sandboxes, which may
	// not answer.
	limit := unix.NsecToTimeval(1e9)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return tcpSocket{}, os.NewSyscallError("setsockopt(SO_RCVTIMEO)", err)
	}
	s, err := diagAsk(fd, local, remote)
	if err == nil && (s.local != local || s.remote != remote) {
		return tcpSocket{}, errNoSocket // it is the listener on the same port
	}
	return s, err
}

// diagAsk does one lookup. The kernel falls back to a listener on the local port,
// which has other addresses.
func diagAsk(fd int, local, remote netip.AddrPort) (tcpSocket, error) {
	if err := unix.Sendto(fd, diagRequest(local, remote), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return tcpSocket{}, os.NewSyscallError("sendto(NETLINK_SOCK_DIAG)", err)
	}
	buf := make([]byte, 4096)
	for {
		n, from, err := unix.Recvfrom(fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return tcpSocket{}, os.NewSyscallError("recvfrom(NETLINK_SOCK_DIAG)", err)
		}
		// Any process may send to a netlink socket; only the kernel is port 0.
		if nl, ok := from.(*unix.SockaddrNetlink); !ok || nl.Pid != 0 {
			continue
		}
		return parseDiag(buf[:n])
	}
}

// diagRequest is an exact lookup: struct nlmsghdr and struct inet_diag_req_v2.
func diagRequest(local, remote netip.AddrPort) []byte {
	b := make([]byte, diagRequestLen)
	ne := binary.NativeEndian
	ne.PutUint32(b[0:], diagRequestLen)
	ne.PutUint16(b[4:], unix.SOCK_DIAG_BY_FAMILY)
	ne.PutUint16(b[6:], unix.NLM_F_REQUEST) // without NLM_F_DUMP: one socket
	ne.PutUint32(b[8:], 1)                  // sequence number
	req := b[diagHeaderLen:]
	// An IPv6 socket connected to an IPv4 address is found as IPv4.
	req[0] = unix.AF_INET6
	if local.Addr().Is4() {
		req[0] = unix.AF_INET
	}
	req[1] = unix.IPPROTO_TCP
	ne.PutUint32(req[4:], ^uint32(0)) // every state
	id := req[8:]
	binary.BigEndian.PutUint16(id[0:], local.Port())
	binary.BigEndian.PutUint16(id[2:], remote.Port())
	copy(id[4:20], local.Addr().AsSlice())
	copy(id[20:36], remote.Addr().AsSlice())
	// id[36:40] is the network device: none
	ne.PutUint64(id[40:], ^uint64(0)) // INET_DIAG_NOCOOKIE
	return b
}

// parseDiag reads the answer to diagRequest: one struct inet_diag_msg or an error.
func parseDiag(b []byte) (tcpSocket, error) {
	ne := binary.NativeEndian
	if len(b) < diagHeaderLen {
		return tcpSocket{}, errBadReply
	}
	size, kind := ne.Uint32(b), ne.Uint16(b[4:])
	if size < diagHeaderLen || uint64(size) > uint64(len(b)) {
		return tcpSocket{}, errBadReply
	}
	b = b[diagHeaderLen:size]
	if kind == unix.NLMSG_ERROR {
		if len(b) < 4 {
			return tcpSocket{}, errBadReply
		}
		errno := unix.Errno(-int32(ne.Uint32(b)))
		if errno == unix.ENOENT {
			return tcpSocket{}, errNoSocket
		}
		return tcpSocket{}, fmt.Errorf("looking up the socket: %w", errno)
	}
	if kind != unix.SOCK_DIAG_BY_FAMILY || len(b) < diagReplyLen {
		return tcpSocket{}, errBadReply
	}
	family, id := b[0], b[4:]
	address := func(b []byte, port []byte) netip.AddrPort {
		ip := netip.AddrFrom16([16]byte(b[:16])).Unmap()
		if family == unix.AF_INET {
			ip = netip.AddrFrom4([4]byte(b[:4]))
		}
		return netip.AddrPortFrom(ip, binary.BigEndian.Uint16(port))
	}
	rest := b[4+diagSocketID:]
	return tcpSocket{
		local:  address(id[4:], id[0:]),
		remote: address(id[20:], id[2:]),
		state:  b[1],
		uid:    ne.Uint32(rest[12:]),
		inode:  uint64(ne.Uint32(rest[16:])),
		cgroup: cgroupAttribute(b[diagReplyLen:]),
	}, nil
}

// cgroupAttribute finds the control group among the attributes (struct nlattr) of an
// answer; 0 if there is none, as before Linux 5.9.
func cgroupAttribute(b []byte) uint64 {
	const header = 4
	ne := binary.NativeEndian
	for len(b) >= header {
		size, kind := int(ne.Uint16(b)), ne.Uint16(b[2:])
		if size < header || size > len(b) {
			return 0
		}
		if kind == diagCgroupID && size >= header+8 {
			return ne.Uint64(b[header:])
		}
		b = b[min((size+3)&^3, len(b)):] // aligned to four bytes
	}
	return 0
}
