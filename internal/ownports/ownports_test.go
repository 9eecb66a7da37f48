package ownports

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"testing"
)

// listen returns the port of a listener that Add knows, and what arrives there.
func listen(t *testing.T, network, address string) (port string, arrived <-chan string) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Skipf("this machine cannot listen on %s: %v", address, err)
	}
	remove := Add(l)
	texts := make(chan string, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(texts)
				return
			}
			text, _ := io.ReadAll(c)
			c.Close()
			texts <- string(text)
		}
	}()
	t.Cleanup(func() {
		remove()
		l.Close()
		for text := range texts {
			if text != "" {
				t.Errorf("%q arrived at %s", text, address)
			}
		}
	})
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), texts
}

// Every way to write the address of a listener is that listener.
func TestEveryFormOfAnAddress(t *testing.T) {
	own := machine(t)
	for at, hosts := range map[string][]string{
		"127.0.0.1": {"127.0.0.1", "::ffff:127.0.0.1", "localhost", "0.0.0.0", "::ffff:7f00:1"},
		"::1":       {"::1", "0:0:0:0:0:0:0:1", "::"},
		"0.0.0.0":   append([]string{"127.0.0.1", "127.0.0.2", "::ffff:127.0.0.3", "0.0.0.0", "localhost"}, own...),
		"::":        append([]string{"127.0.0.1", "::1", "::", "127.9.9.9"}, own...),
	} {
		t.Run(at, func(t *testing.T) {
			port, _ := listen(t, "tcp", net.JoinHostPort(at, "0"))
			for _, host := range hosts {
				c, err := Dial(t.Context(), "tcp", net.JoinHostPort(host, port))
				if err == nil {
					c.Close()
				}
				var refused *net.OpError
				if !errors.Is(err, ErrOwn) && !errors.As(err, &refused) { // some systems do not connect some of them
					t.Errorf("%s, for a listener at %s: got %v, want %v", host, at, err, ErrOwn)
				}
			}
		})
	}
}

// machine returns addresses of this machine that are not loopback.
func machine(t *testing.T) (all []string) {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && n.IP.To4() != nil {
			all = append(all, n.IP.String())
		}
	}
	return all
}

func TestOtherPortsAreReached(t *testing.T) {
	listen(t, "tcp", "127.0.0.1:0")
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	c, err := Dial(t.Context(), "tcp", other.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	// The listener's port is another's when it is closed.
	remove := Add(other)
	if _, err := Dial(t.Context(), "tcp", other.Addr().String()); !errors.Is(err, ErrOwn) {
		t.Errorf("got %v, want %v", err, ErrOwn)
	}
	remove()
	if c, err = Dial(t.Context(), "tcp", other.Addr().String()); err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// Upstream's clients without a dialer have http.DefaultTransport's.
func TestDefaultTransport(t *testing.T) {
	port, _ := listen(t, "tcp", "127.0.0.1:0")
	if _, err := http.Get("http://127.0.0.1:" + port); !errors.Is(err, ErrOwn) {
		t.Errorf("got %v, want %v", err, ErrOwn)
	}
}

// A listener without authentication is not the only one that some connections have to avoid.
func TestReaches(t *testing.T) {
	at := func(text string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(text)) }
	for _, c := range []struct {
		at, listener string
		want         bool
	}{
		{"192.0.2.1:6443", "192.0.2.1:6443", true}, {"[::ffff:192.0.2.1]:6443", "192.0.2.1:6443", true}, {"127.0.0.1:6443", "[::]:6443", true},
		{"192.0.2.1:10250", "192.0.2.1:6443", false}, {"192.0.2.2:6443", "192.0.2.1:6443", false}, {"192.0.2.1:6443", "0.0.0.0:6443", false},
	} {
		if got := Reaches(at(c.at), at(c.listener)); got != c.want {
			t.Errorf("%s, for a listener at %s: got %v", c.at, c.listener, got)
		}
	}
	if Reaches(&net.UnixAddr{Name: "/s"}, at("[::]:6443")) {
		t.Error("a socket is no port")
	}
}
