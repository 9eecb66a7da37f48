// Package procnet reads the kernel's tables of TCP sockets, /proc/net/tcp and
// /proc/net/tcp6 (proc_pid_net(5)).
//
// prometheus/procfs, which is linked anyway, has marked its own functions for these files as
// deprecated. They also return nothing at all when one line is malformed, and read no other
// root than a directory.
package procnet

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"io"
	"iter"
	"net/netip"
	"strconv"
	"strings"
)

// TCP states as the kernel numbers them (include/net/tcp_states.h).
const (
	Established = 1
	FinWait1    = 4
	FinWait2    = 5
	CloseWait   = 8
	Listen      = 10
)

// Socket is a line of a table.
type Socket struct {
	Local netip.AddrPort // without a zone; an IPv4 address in tcp6 is one of IPv4 here
	State uint8
	Inode uint64 // 0 for a socket that no process holds
}

// Sockets reads a table. It skips the heading and every line that it does not understand. An
// error of r is the last thing that it yields.
func Sockets(r io.Reader) iter.Seq2[Socket, error] {
	return func(yield func(Socket, error) bool) {
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			if s, ok := parseLine(lines.Text()); ok && !yield(s, nil) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield(Socket{}, err)
		}
	}
}

// parseLine reads one line:
//
//	sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode …
func parseLine(line string) (s Socket, ok bool) {
	f := strings.Fields(line)
	if len(f) < 10 {
		return Socket{}, false
	}
	s.Local, ok = parseAddr(f[1])
	state, errState := strconv.ParseUint(f[3], 16, 8)
	inode, errInode := strconv.ParseUint(f[9], 10, 64)
	if !ok || errState != nil || errInode != nil {
		return Socket{}, false
	}
	s.State, s.Inode = uint8(state), inode
	return s, true
}

// parseAddr reads "0100007F:1F90": the address as 32-bit words in the machine's own byte
// order, the port as a number.
func parseAddr(text string) (netip.AddrPort, bool) {
	addr, port, ok := strings.Cut(text, ":")
	if !ok {
		return netip.AddrPort{}, false
	}
	b, err := hex.DecodeString(addr)
	if err != nil || (len(b) != 4 && len(b) != 16) {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	p, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, false
	}
	ip, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(ip.Unmap(), uint16(p)), true
}
