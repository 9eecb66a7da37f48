package insecure

import (
	"errors"
	"net"
	"net/http"
	"testing"

	"github.com/karve-k8s/karve/internal/ownports"
)

// TestOwnConnections opens connections from the listener's process: with Dial, they are a program's, and
// otherwise the server's.
func TestOwnConnections(t *testing.T) {
	for name, opts := range map[string]Options{"default": {}, "any user": {AnyUser: true}} {
		addr, _ := start(t, http.HandlerFunc(proto), opts)
		plain := &http.Client{Transport: &http.Transport{DialContext: new(net.Dialer).DialContext, DisableKeepAlives: true}}
		if code, body := get(t, plain, "http://"+addr); code != http.StatusForbidden || body != ownConnection+"\n" {
			t.Errorf("%s: the server's own connection got %d %q", name, code, body)
		}
		if code, _ := get(t, client, "http://"+addr); code != http.StatusOK {
			t.Errorf("%s: a connection by Dial got %d", name, code)
		}
		// The default transport does not even connect.
		if _, err := http.Get("http://" + addr); !errors.Is(err, ownports.ErrOwn) {
			t.Errorf("%s: the default client got %v, want %v", name, err, ownports.ErrOwn)
		}
	}
}
