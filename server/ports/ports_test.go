package ports

import (
	"net"
	"strings"
	"testing"
)

// An error names the option, its value and the remedy.
func TestErrorsNameTheOption(t *testing.T) {
	l, err := Port{Option: "secure-port", Address: "127.0.0.1"}.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := Local(l); got != l.Addr().String() {
		t.Errorf("Local: got %s, want %s", got, l.Addr())
	}
	used := l.Addr().(*net.TCPAddr).Port
	for _, tc := range []struct {
		port Port
		want []string
	}{
		{Port{Option: "secure-port", Address: "127.0.0.1", Number: used}, []string{"--secure-port", "in use", "or 0 for any"}},
		{Port{Option: "insecure-port", Address: "127.0.0.1", Number: used, AnyFree: "-1"}, []string{"--insecure-port", "in use", "or -1 for any"}},
		{Port{Option: "insecure-port", Address: "192.0.2.1"}, []string{"--insecure-port 0", "does not have the address 192.0.2.1"}},
		{Port{Option: "etcd-listen", Address: "no address"}, []string{"--etcd-listen 0"}},
	} {
		err := tc.port.Try()
		for _, want := range tc.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: got %v, want %q in it", tc.port, err, want)
			}
		}
	}
}

// This machine reaches a wildcard listener by loopback.
func TestLocalOfAWildcard(t *testing.T) {
	l, err := Port{Option: "secure-port"}.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", Local(l))
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}
