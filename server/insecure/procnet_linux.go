package insecure

import (
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/karve-k8s/karve/internal/procnet"
)

// procSocket finds the TCP socket with these addresses in /proc/net (proc(5)). A socket that a
// process holds wins over one in TIME_WAIT with the same addresses. The error wraps
// errNoSocket if there is none.
//
// It reads a line for every connection of the machine, and not all at one point in time. It is
// therefore only for kernels that cannot be asked directly.
func procSocket(local, remote netip.AddrPort) (tcpSocket, error) {
	// An IPv6 socket connected to an IPv4 address is only in tcp6.
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

// findProc returns the socket with these addresses in a file of /proc/net. It returns the
// owned one if there are several, and the zero socket if there is none.
func findProc(r io.Reader, local, remote netip.AddrPort) (found tcpSocket, err error) {
	for s, err := range procnet.Sockets(r) {
		if err != nil {
			return found, err
		}
		if s.Local == local && s.Remote == remote {
			found = tcpSocket{local: s.Local, remote: s.Remote, state: s.State, uid: s.UID, inode: s.Inode}
			if found.owned() {
				break
			}
		}
	}
	return found, nil
}
