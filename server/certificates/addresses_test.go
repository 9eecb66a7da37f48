package certificates

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/karve-k8s/karve/certs"
)

// late is a TLS server that reads its certificate again only when it is told to, as the API
// server does some time after the file has changed.
type late struct {
	store *certs.Store
	mu    sync.Mutex
	shown tls.Certificate
}

func (s *late) reload(t *testing.T) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(s.store.CertFile(certs.Serving), s.store.KeyFile(certs.Serving))
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown = pair
}

func (s *late) serve(l net.Listener) {
	l = tls.NewListener(l, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		shown := s.shown
		return &shown, nil
	}})
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			_ = conn.(*tls.Conn).Handshake()
		}()
	}
}

// The serving certificate is valid for the addresses that clients use. An interface of
// someone else's changes nothing. The first client at an address waits for the certificate,
// until the server shows it.
func TestServingCertificateCoversWhatClientsUse(t *testing.T) {
	const used = "127.0.0.2"
	listener, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	if probe, err := net.Listen("tcp4", used+":0"); err != nil {
		t.Skipf("this system has no %s: %v", used, err)
	} else {
		probe.Close()
	}
	var logged text
	log := logrus.New()
	log.SetOutput(&logged)
	c := New(Config{DataDir: t.TempDir(), Server: "https://127.0.0.1:" + port, Log: log})
	c.addresses.local = func() ([]net.Addr, error) {
		all := []net.Addr{}
		for _, ip := range []string{"127.0.0.1", used, "192.0.2.99"} {
			all = append(all, &net.IPNet{IP: net.ParseIP(ip), Mask: net.CIDRMask(24, 32)})
		}
		return all, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- c.Run(ctx, func() { close(ready) }) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	<-ready
	server := &late{store: c.Store()}
	server.reload(t)
	go server.serve(c.Covering(listener, "127.0.0.1:"+port))

	trusted := x509.NewCertPool()
	authority, err := os.ReadFile(c.Store().CertFile(certs.ServerCA))
	if err != nil || !trusted.AppendCertsFromPEM(authority) {
		t.Fatal("no authority", err)
	}
	dial := func(host string) error {
		conn, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", net.JoinHostPort(host, port), &tls.Config{RootCAs: trusted})
		if err == nil {
			conn.Close()
		}
		return err
	}
	if err := dial("127.0.0.1"); err != nil {
		t.Errorf("the first address: %v", err)
	}
	serial := func() []byte { return readCertificate(c.Store().CertFile(certs.Serving)).Raw }
	before := serial()
	for _, ip := range readCertificate(c.Store().CertFile(certs.Serving)).IPAddresses {
		if ip.String() == used || ip.String() == "192.0.2.99" {
			t.Errorf("the certificate is valid for %v, which no client has used", ip)
		}
	}

	dialled := make(chan error, 1)
	go func() { dialled <- dial(used) }()
	for bytes.Equal(serial(), before) { // the client waits meanwhile
		select {
		case err := <-dialled:
			t.Fatalf("the client did not wait for a certificate with its address: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	server.reload(t)
	if err := <-dialled; err != nil {
		t.Errorf("the first client at %s: %v", used, err)
	}
	after := serial()
	if err := dial(used); err != nil || !bytes.Equal(serial(), after) {
		t.Errorf("the second client at %s: %v; renewed again: %v", used, err, !bytes.Equal(serial(), after))
	}
	if got := strings.Count(logged.String(), "\n"); got != 1 || !strings.Contains(logged.String(), used) {
		t.Errorf("got %d lines, want one with the address:\n%s", got, &logged)
	}
}

// A machine with very many addresses has only some of them in its certificate.
func TestAddressesHaveALimit(t *testing.T) {
	var logged text
	log := logrus.New()
	log.SetOutput(&logged)
	a := newAddresses([]net.IP{net.IPv4(192, 0, 2, 1)}, log)
	a.local = func() ([]net.Addr, error) { return nil, errors.New("hidden") } // every address is believed
	added := 0
	for i := range 3 * mostAdded {
		if a.add(&net.TCPAddr{IP: net.IPv4(198, 51, 100, byte(i))}) {
			added++
		}
	}
	if all, err := a.used(); err != nil || added != mostAdded || len(all) != 3+mostAdded {
		t.Errorf("added %d, so that there are %d: want %d and %d (%v)", added, len(all), mostAdded, 3+mostAdded, err)
	}
	if got := logged.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "--tls-san") {
		t.Errorf("got %q, want one line with the remedy", got)
	}
}

// Only addresses of this machine are added, each once.
func TestAddressesAreBounded(t *testing.T) {
	a := newAddresses([]net.IP{net.IPv4(192, 0, 2, 1)}, logrus.New())
	hidden := errors.New("hidden")
	local := []net.Addr{&net.IPNet{IP: net.IPv4(192, 0, 2, 2), Mask: net.CIDRMask(24, 32)}}
	var fails error
	a.local = func() ([]net.Addr, error) { return local, fails }
	at := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 6443} }
	for _, step := range []struct {
		ip   string
		err  error
		want bool
	}{
		{"127.0.0.1", nil, false},        // from the beginning
		{"192.0.2.1", nil, false},        // too
		{"192.0.2.2", nil, true},         // an interface's
		{"192.0.2.2", nil, false},        // again
		{"192.0.2.3", nil, false},        // of nobody: a route makes this machine answer
		{"fe80::1", hidden, false},       // with a zone that no certificate can name
		{"192.0.2.3", hidden, true},      // the system hides its interfaces
		{"::ffff:192.0.2.2", nil, false}, // as an IPv6 socket has it
	} {
		if fails = step.err; a.add(at(step.ip)) != step.want {
			t.Errorf("%s (interfaces: %v): got %v, want %v", step.ip, step.err, !step.want, step.want)
		}
	}
	all, err := a.used()
	if err != nil || len(all) != 5 {
		t.Errorf("got %v, %v, want the two of loopback and three more", all, err)
	}
}
