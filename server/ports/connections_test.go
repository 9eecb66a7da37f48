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
	accepting := make(chan error)
	go func() {
		_, err := l.Accept()
		accepting <- err
	}()
	for i, c := range clients {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("connection %d: %v, want its end", i, err)
		}
	}
	// Only the end of the listener ends Accept: upstream's server panics if that comes before its stop.
	select {
	case err := <-accepting:
		t.Errorf("Accept after CloseAll: %v, want it to wait", err)
	default:
	}
	l.Close()
	if err := <-accepting; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept of a closed listener: %v, want %v", err, net.ErrClosed)
	}
}

// A client on this machine has what was written for it before the connection ends, also while it sends something. One that stands still, and
// one on another machine, do not delay the end for long.
func TestFinish(t *testing.T) {
	bound, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Track(bound)
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	still, other := net.Pipe()
	defer still.Close()
	addressed := addressed{other, &net.UnixAddr{}, &net.UnixAddr{}}
	l.open[&connection{Conn: addressed, from: l, gone: make(chan struct{})}] = struct{}{}
	answer := make([]byte, 16<<20) // more than the kernel takes
	go func() {
		server.Write(answer)
		io.Copy(io.Discard, server)
		server.Close() // as net/http does
	}()
	begun := make([]byte, 1)
	if _, err := io.ReadFull(client, begun); err != nil {
		t.Fatal(err)
	}
	finished := make(chan struct{})
	go func() { l.Finish(); close(finished) }()
	got, part := 1, make([]byte, 1<<20)
	for {
		n, err := client.Read(part)
		got += n
		if err == nil {
			_, err = client.Write(begun)
		}
		if err != nil {
			break
		}
	}
	if got != len(answer) {
		t.Errorf("the client got %d bytes, want %d", got, len(answer))
	}
	client.Close()
	<-finished
	if len(l.open) != 0 {
		t.Errorf("%d connections are left", len(l.open))
	}
}

// The clients of this machine have its addresses.
func TestLocalClients(t *testing.T) {
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
		if got := (&connection{Conn: addressed{nil, c.called, c.client}}).local(); got != c.local {
			t.Errorf("%v to %v: local %v, want %v", c.client, c.called, got, c.local)
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
