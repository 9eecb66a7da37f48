package ports

import (
	"errors"
	"io"
	"net"
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

func TestOnlyHere(t *testing.T) {
	for address, want := range map[string]bool{"127.0.0.1:0": true, "127.8.0.1:0": true, ":0": false} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if got := OnlyHere(l); got != want {
			t.Errorf("%s: got %v, want %v", address, got, want)
		}
	}
}
