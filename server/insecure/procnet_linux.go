package insecure

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// procSocket finds the TCP socket with these addresses in /proc/net (proc(5)).
// A socket that a process holds wins over one in TIME_WAIT with the same
// addresses. The error wraps errNoSocket when there is none.
//
// Every line of every connection on the machine is read, and not at one point
// in time: this is for kernels that cannot be asked directly.
func procSocket(local, remote netip.AddrPort) (tcpSocket, error) {
	// IPv4 over an IPv6 socket is in tcp6 only.
	files := []string{"/proc/net/tcp", "/proc/net/tcp6"}
	if !local.Addr().Is4() {
		files = files[1:]
	}
	var failed error
	searched := 0
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			failed = err // a kernel without IPv6 has no tcp6
			continue
		}
		s, err := findProc(f, zoneless(local), zoneless(remote))
		f.Close()
		if err != nil {
			return tcpSocket{}, fmt.Errorf("reading %s: %w", name, err)
		}
		if s.owned() {
			return s, nil
		}
		searched++
	}
	if searched == 0 {
		return tcpSocket{}, fmt.Errorf("searching the sockets of this machine: %w", failed)
	}
	return tcpSocket{}, errNoSocket
}

// findProc returns the socket with these addresses in a file of /proc/net, the
// owned one if there are several, the zero socket if there is none.
func findProc(r io.Reader, local, remote netip.AddrPort) (found tcpSocket, err error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		s, ok := parseProcLine(lines.Text())
		if ok && s.local == local && s.remote == remote {
			if found = s; s.owned() {
				break
			}
		}
	}
	return found, lines.Err()
}

// parseProcLine reads one line of /proc/net/tcp or tcp6:
//
//	sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode …
func parseProcLine(line string) (s tcpSocket, ok bool) {
	f := strings.Fields(line)
	if len(f) < 10 {
		return s, false
	}
	var okLocal, okRemote bool
	s.local, okLocal = parseProcAddr(f[1])
	s.remote, okRemote = parseProcAddr(f[2])
	state, errState := strconv.ParseUint(f[3], 16, 8)
	uid, errUID := strconv.ParseUint(f[7], 10, 32)
	inode, errInode := strconv.ParseUint(f[9], 10, 64)
	if !okLocal || !okRemote || errState != nil || errUID != nil || errInode != nil {
		return tcpSocket{}, false
	}
	s.state, s.uid, s.inode = uint8(state), uint32(uid), inode
	return s, true
}

// parseProcAddr reads "0100007F:1F90": the address as 32-bit words in the
// machine's own byte order, the port as a number.
func parseProcAddr(text string) (netip.AddrPort, bool) {
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
