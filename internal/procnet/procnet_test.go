package procnet

import (
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1 0
nonsense
   2: 0100007F:C000 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 77 1 0
   3: 0000000000000000FFFF00000100007F:C000 0000000000000000FFFF00000100007F:1F90 06 0:0 00:0 0 0 0 0 3 0
`

func TestSockets(t *testing.T) {
	if local, _ := parseAddr("0100007F:0000"); !local.Addr().IsLoopback() {
		t.Skip("the example is of a little-endian machine")
	}
	broken := errors.New("broken")
	var got []Socket
	for s, err := range Sockets(io.MultiReader(strings.NewReader(table), iotest.ErrReader(broken))) {
		if err != nil {
			if err != broken {
				t.Errorf("error %v, want that of the reader", err)
			}
			broken = nil
			continue
		}
		got = append(got, s)
	}
	address := netip.MustParseAddrPort
	want := []Socket{
		{Local: address("127.0.0.1:8080"), State: Listen, Inode: 12},
		{Local: address("127.0.0.1:49152"), State: Established, Inode: 77},
		{Local: address("127.0.0.1:49152"), State: 6},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if broken != nil {
		t.Error("the error of the reader was lost")
	}
}

func FuzzLine(f *testing.F) {
	f.Add("   2: 0100007F:C000 0100007F:1F90 01 0:0 00:0 0  1000        0 77 1 0")
	f.Fuzz(func(t *testing.T, line string) {
		if s, ok := parseLine(line); ok && !s.Local.IsValid() {
			t.Errorf("parseLine(%q) = %+v", line, s)
		}
	})
}
