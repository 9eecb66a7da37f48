package certificates

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/karve-k8s/karve/certs"
)

// addresses are the addresses of this machine at which clients have reached the server. The serving
// certificate has to be valid for these only. Interfaces come and go with containers, VPNs and
// virtual machines, and no client of the server uses most of them.
type addresses struct {
	local func() ([]net.Addr, error) // returns this machine's addresses

	log *logrus.Logger

	mu      sync.Mutex
	clients map[netip.Addr]bool
	covered map[netip.Addr]bool // by the serving certificate
	most    int                 // clients may have
	full    bool                // it has been logged that they have
}

// mostAdded is how many addresses are added to the configured ones at most. A certificate
// with thousands would slow down every handshake, and each of them is a write to the disk.
const mostAdded = 64

func newAddresses(first []net.IP, log *logrus.Logger) *addresses {
	a := &addresses{local: certs.InterfaceAddrs, log: log, clients: map[netip.Addr]bool{}}
	for _, ip := range append([]net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, first...) {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			a.clients[addr.Unmap()] = true
		}
	}
	a.most = len(a.clients) + mostAdded
	return a
}

// used returns the addresses that clients use, for certs.Config.InterfaceAddrs.
func (a *addresses) used() ([]net.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []net.Addr
	for addr := range a.clients {
		all = append(all, &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())})
	}
	return all, nil
}

// covers records which addresses the certificate in a file is valid for.
func (a *addresses) covers(file string) {
	covered := map[netip.Addr]bool{}
	if cert := readCertificate(file); cert != nil {
		for _, ip := range cert.IPAddresses {
			if addr, ok := netip.AddrFromSlice(ip); ok {
				covered[addr.Unmap()] = true
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.covered = covered
}

// add records that a client uses an address, and reports whether the serving certificate lacks it.
// It reports that once for each address, and only for addresses that this machine has.
func (a *addresses) add(at net.Addr) (lacking bool) {
	tcp, ok := at.(*net.TCPAddr)
	if !ok {
		return false
	}
	addr, ok := netip.AddrFromSlice(tcp.IP)
	if addr = addr.Unmap(); !ok || addr.IsLinkLocalUnicast() && addr.Is6() {
		return false // a certificate cannot contain the zone
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.clients[addr] || a.full || !a.has(addr) {
		return false
	}
	if len(a.clients) >= a.most {
		if a.covered[addr] { // since an earlier start
			return false
		}
		a.full = true
		a.log.Warnf("clients have connected to %d addresses of this machine: the serving certificate will not be issued again for %s or any other; add an address that needs it with --tls-san", mostAdded, addr)
		return false
	}
	a.clients[addr] = true
	return !a.covered[addr]
}

// has reports whether an interface has the address. A route may make this machine answer for a
// whole network (`ip route add local`). If the system does not list its interfaces, has returns
// true.
func (a *addresses) has(addr netip.Addr) bool {
	local, err := a.local()
	return err != nil || slices.ContainsFunc(local, func(one net.Addr) bool {
		n, ok := one.(*net.IPNet)
		return ok && n.IP.Equal(net.IP(addr.AsSlice()))
	})
}

// coverLimit is how long the first client at an address waits for a certificate that is valid for
// it. servedPoll is how often Karve checks whether the API server already presents it.
const (
	coverLimit = 5 * time.Second
	servedPoll = 10 * time.Millisecond
)

// Covering wraps l so that the serving certificate is valid for the address that a client connects
// to. The first connection to an address that the certificate lacks waits until the certificate has
// been issued again. If the server reloads a changed certificate with a delay, at is the address at
// which this process reaches l, to check which certificate the server presents. Otherwise at is
// empty.
func (c *Certificates) Covering(l net.Listener, at string) net.Listener {
	return &coveringListener{l, c, at}
}

type coveringListener struct {
	net.Listener
	certificates *Certificates
	at           string
}

func (l *coveringListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil || !l.certificates.addresses.add(conn.LocalAddr()) {
		return conn, err
	}
	return &coveredConn{Conn: conn, cover: sync.OnceFunc(func() { l.certificates.cover(l.at) })}, nil
}

// coveredConn waits before the first byte is read, and so before the TLS handshake.
type coveredConn struct {
	net.Conn
	cover func()
}

func (c *coveredConn) Read(b []byte) (int, error) {
	c.cover()
	return c.Conn.Read(b)
}

// cover renews the certificates. It returns when the server presents the new one, or after
// coverLimit.
func (c *Certificates) cover(at string) {
	limit := time.After(coverLimit)
	renewed := make(chan struct{})
	select {
	case c.asked <- func() { close(renewed) }:
	case <-limit:
		return
	}
	select {
	case <-renewed:
	case <-limit:
		return
	}
	if at == "" {
		return
	}
	tick := time.NewTicker(servedPoll)
	defer tick.Stop()
	for want := readCertificate(c.Store().CertFile(certs.Serving)); want != nil && !shows(at, want); {
		select {
		case <-tick.C:
		case <-limit:
			return
		}
	}
}

// shows reports whether a TLS server presents this certificate.
func shows(at string, want *x509.Certificate) bool {
	dialer := &net.Dialer{Timeout: coverLimit}
	// The bytes are compared below, so there is nothing to verify.
	conn, err := tls.DialWithDialer(dialer, "tcp", at, &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"})
	if err != nil {
		return false
	}
	defer conn.Close()
	shown := conn.ConnectionState().PeerCertificates
	return len(shown) > 0 && bytes.Equal(shown[0].Raw, want.Raw)
}

// readCertificate returns the first certificate in a file, or nil.
func readCertificate(file string) *x509.Certificate {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	block, _ := pem.Decode(content)
	if block == nil {
		return nil
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil
	}
	return cert
}
