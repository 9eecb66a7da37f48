package ports

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
)

// After CloseAll, no connection is open, and none that is accepted stays open.
func TestCloseAll(t *testing.T) {
	bound, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Track(bound)
	defer l.Close()
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	var clients []net.Conn
	for range 2 {
		clients = append(clients, dial())
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if len(clients) == 1 { // the server has closed this one itself
			accepted.Close()
		}
	}
	if len(l.open) != 1 {
		t.Errorf("%d connections are tracked, want one", len(l.open))
	}
	l.CloseAll()
	clients = append(clients, dial())
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a connection after CloseAll: %v, want %v", err, net.ErrClosed)
	}
	for i, c := range clients {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("connection %d: %v, want its end", i, err)
		}
	}
}

// CloseLocal closes the connections of this machine's clients only.
func TestCloseLocal(t *testing.T) {
	tcp := func(address string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address)) }
	unix := &net.UnixAddr{Net: "unix"}
	for _, c := range []struct {
		client, called net.Addr
		local          bool
	}{
		{tcp("127.0.0.1:50000"), tcp("127.0.0.1:6443"), true},
		{tcp("[::1]:50000"), tcp("[::1]:6443"), true},
		{tcp("192.0.2.1:50000"), tcp("192.0.2.1:6443"), true},
		{tcp("192.0.2.2:50000"), tcp("192.0.2.1:6443"), false},
		{tcp("[2001:db8::2]:50000"), tcp("[2001:db8::1]:6443"), false},
		{unix, unix, true},
	} {
		l := Track(nil)
		client, server := net.Pipe()
		defer client.Close()
		l.open[&connection{addressed{server, c.called, c.client}, l}] = struct{}{}
		l.CloseLocal()
		if left := len(l.open); left == 0 != c.local {
			t.Errorf("%v to %v: %d connections are left", c.client, c.called, left)
		}
		l.CloseAll()
		if _, err := client.Read(make([]byte, 1)); len(l.open) != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("%v to %v: %v after CloseAll", c.client, c.called, err)
		}
	}
}

// addressed is a connection with addresses.
type addressed struct {
	net.Conn
	here, there net.Addr
}

func (a addressed) LocalAddr() net.Addr  { return a.here }
func (a addressed) RemoteAddr() net.Addr { return a.there }
