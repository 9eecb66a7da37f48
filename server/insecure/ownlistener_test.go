package insecure

import (
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/karve-k8s/karve/internal/ownports"
)

func TestOwnOnly(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var logged strings.Builder
	l := OwnOnly(tcp, logrus.NewEntry(&logrus.Logger{Out: &logged, Formatter: &logrus.TextFormatter{}, Level: logrus.InfoLevel})).(*ownListener)
	defer l.Close()
	l.owners = owners{known: true, self: 7, shared: func(uint32) bool { return false }, alive: func(net.Conn) bool { return true }, local: ownports.IsLocal, held: func(uint64) (bool, error) { return false, nil }, container: func(uint64) (string, error) { return "", nil }}
	users := []uint32{8, 9, 7} // of those that connect
	known := map[netip.AddrPort]uint32{}
	l.owners.lookup = func(peer, _ netip.AddrPort) (owner, error) {
		if _, again := known[peer]; !again {
			known[peer], users = users[0], users[1:]
		}
		return owner{uid: known[peer]}, nil
	}
	var clients []net.Conn
	for range 3 {
		c, err := net.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		clients = append(clients, c)
	}
	got, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if got.RemoteAddr().String() != clients[2].LocalAddr().String() {
		t.Errorf("accepted %v, want the third, %v", got.RemoteAddr(), clients[2].LocalAddr())
	}
	for i, c := range clients[:2] {
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("client %d reads %v, want the end", i, err)
		}
	}
	if n := strings.Count(logged.String(), "refused a connection"); n != 1 || !strings.Contains(logged.String(), "uid 8") {
		t.Errorf("logged %d refusals, want 1 in a minute: %s", n, &logged)
	}
}
