package insecure

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for _, tc := range []struct {
		addr        string
		allowRemote bool
		want        string // in the error; "" is none
	}{
		{"127.0.0.1", false, ""},
		{"127.9.8.7", false, ""},
		{"::1", false, ""},
		{"::ffff:127.0.0.1", false, ""},
		{"0.0.0.0", false, "--insecure-bind-address=0.0.0.0"},
		{"::", false, "--insecure-allow-remote"},
		{"192.0.2.1", false, "--insecure-allow-remote"},
		{"192.0.2.1", true, ""},
		{"localhost", true, "not an IP address"},
		{"", false, "not an IP address"},
	} {
		err := Check(tc.addr, tc.allowRemote)
		if (err == nil) != (tc.want == "") || (err != nil && !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("Check(%q, %v) = %v, want an error with %q", tc.addr, tc.allowRemote, err, tc.want)
		}
		if strings.Contains(tc.want, "remote") && !errors.Is(err, ErrRemote) {
			t.Errorf("Check(%q, %v) = %v, want it to wrap ErrRemote", tc.addr, tc.allowRemote, err)
		}
	}
}

func TestHost(t *testing.T) {
	loopback := Options{AnyUser: true, Addr: netip.MustParseAddr("127.0.0.1")}
	lan := Options{AnyUser: true, AllowRemote: true, Addr: netip.MustParseAddr("192.0.2.1")}
	all := Options{AnyUser: true, AllowRemote: true, Addr: netip.MustParseAddr("0.0.0.0")}
	allButLocal := Options{AnyUser: true, Addr: netip.MustParseAddr("::")}
	for _, tc := range []struct {
		opts Options
		host string
		want int
	}{
		{loopback, "127.0.0.1:8080", 200},
		{loopback, "127.0.0.1", 200},
		{loopback, "127.1.2.3:1", 200},
		{loopback, "localhost:9090", 200},
		{loopback, "LocalHost.", 200},
		{loopback, "karve.localhost:8080", 200},
		{loopback, "[::1]:8080", 200},
		{loopback, "[::ffff:127.0.0.1]", 200},
		{loopback, "127.0.0.1.:80", 200},
		{loopback, "", 200},
		{loopback, "localhost..", 403},
		{loopback, "evil.example:8080", 403},
		{loopback, "localhost.evil.example", 403},
		{loopback, "127.0.0.1.evil.example", 403},
		{loopback, "notlocalhost", 403},
		{loopback, "192.0.2.1:8080", 403},
		{loopback, "0.0.0.0:8080", 403},
		{loopback, "::1", 403},
		{loopback, "[::1", 403},
		{loopback, "[localhost]:80", 403},
		{loopback, "localhost:evil", 403},
		{loopback, "127.1", 403},
		{loopback, "2130706433", 403},
		{lan, "192.0.2.1:8080", 200},
		{lan, "localhost", 200},
		{lan, "192.0.2.2", 403},
		{lan, "pi.example", 403},
		{all, "192.0.2.2:80", 200},
		{all, "[2001:db8::1]:80", 200},
		{all, "pi.example", 403},
		{allButLocal, "192.0.2.2:80", 403},
		{allButLocal, "localhost", 200},
	} {
		if got, _ := do(t, tc.opts, tc.host, nil); got != tc.want {
			t.Errorf("Host %q at %v: got %d, want %d", tc.host, tc.opts.Addr, got, tc.want)
		}
	}
}

func TestOrigin(t *testing.T) {
	loopback := Options{AnyUser: true, Addr: netip.MustParseAddr("127.0.0.1")}
	lan := Options{AnyUser: true, AllowRemote: true, Addr: netip.MustParseAddr("192.0.2.1")}
	all := Options{AnyUser: true, AllowRemote: true, Addr: netip.MustParseAddr("0.0.0.0")}
	for _, tc := range []struct {
		opts         Options
		host, origin string
		want         int
	}{
		{loopback, "localhost", "http://localhost:3000", 200},
		{loopback, "localhost", "http://127.0.0.1", 200},
		{loopback, "localhost", "https://[::1]:1", 200},
		{loopback, "localhost", "http://evil.example", 403},
		{loopback, "localhost", "http://localhost.evil.example", 403},
		{loopback, "localhost", "http://localhost@evil.example", 403},
		{loopback, "localhost", "null", 403},
		{loopback, "localhost", "", 403},
		{loopback, "localhost", "file://", 403},
		{loopback, "localhost", "chrome-extension://localhost", 403},
		{loopback, "localhost", "http:localhost", 403},
		{lan, "192.0.2.1", "http://192.0.2.1:8080", 200},
		{lan, "192.0.2.1", "http://192.0.2.2", 403},
		// An attacker's site may be at a bare address.
		{all, "127.0.0.1:8080", "http://203.0.113.5", 403},
		{all, "192.0.2.1:8080", "http://192.0.2.1:8080", 200},
	} {
		h := http.Header{"Origin": {tc.origin}}
		if got, _ := do(t, tc.opts, tc.host, h); got != tc.want {
			t.Errorf("Origin %q to %q: got %d, want %d", tc.origin, tc.host, got, tc.want)
		}
	}
	for header, want := range map[string]int{"cross-site": 403, "same-site": 200, "same-origin": 200, "none": 200} {
		if got, _ := do(t, loopback, "localhost", http.Header{"Sec-Fetch-Site": {header}}); got != want {
			t.Errorf("Sec-Fetch-Site %s: got %d, want %d", header, got, want)
		}
	}
	// One good origin does not excuse another, and an upgrade is no exception.
	h := http.Header{"Origin": {"http://localhost", "http://evil.example"}, "Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
	if got, _ := do(t, loopback, "localhost", h); got != 403 {
		t.Errorf("WebSocket with a foreign second Origin: got %d, want 403", got)
	}
}

func TestRefusalIsOneLineOfText(t *testing.T) {
	code, body := do(t, Options{AnyUser: true}, "evil.example\x1b[2J", nil)
	if code != 403 || strings.Count(body, "\n") != 1 || !strings.HasSuffix(body, "\n") {
		t.Errorf("got %d %q, want 403 and one line", code, body)
	}
	if !strings.Contains(body, "evil.example") || strings.Contains(body, "\x1b") {
		t.Errorf("body %q: want the host in it, escaped", body)
	}
}

func TestMethods(t *testing.T) {
	g := Guard(http.NotFoundHandler(), Options{AnyUser: true})
	for _, tc := range []struct {
		method, target string
		want           int
	}{
		{"CONNECT", "127.0.0.1:443", 405},
		{"CONNECT", "evil.example:443", 403},
		{"OPTIONS", "*", 200},
		{"GET", "http://evil.example/", 403}, // absolute form
		{"GET", "http://localhost/", 404},
		{"HEAD", "http://evil.example/", 403},
	} {
		r := httptest.NewRequest(tc.method, "/", nil)
		switch {
		case tc.target == "*":
			r.Host, r.URL.Path = "localhost", "*"
		default:
			r = httptest.NewRequest(tc.method, tc.target, nil)
		}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		if w.Code != tc.want {
			t.Errorf("%s %s: got %d, want %d", tc.method, tc.target, w.Code, tc.want)
		}
		if tc.method == "HEAD" && w.Body.Len() > 0 {
			t.Errorf("HEAD got a body: %s", w.Body)
		}
	}
}

func do(t *testing.T, opts Options, host string, header http.Header) (int, string) {
	t.Helper()
	r := httptest.NewRequest("GET", "/api", nil)
	r.Host = host
	for k, v := range header {
		r.Header[k] = v
	}
	w := httptest.NewRecorder()
	Guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {}), opts).ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func FuzzHostName(f *testing.F) {
	for _, s := range []string{"localhost:80", "[::1]:8080", "[fe80::1%eth0]", "127.0.0.1", "a:b:c", "[", "]", "."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, host string) {
		name, ip, ok := hostName(host)
		if !ok {
			return
		}
		// What is accepted must mean the same to every other reader.
		if again, ip2, ok := hostName(bracket(name, ip)); !ok || again != name || ip2 != ip {
			t.Errorf("hostName(%q) = %q; hostName of that = %q, %v", host, name, again, ok)
		}
	})
}

func bracket(name string, ip netip.Addr) string {
	if ip.Is6() {
		return "[" + name + "]"
	}
	return name
}
