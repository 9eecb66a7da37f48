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
	for _, tc := range []struct {
		method, target string
		want           int
	}{
		{"CONNECT", "127.0.0.1:443", 405},
		{"CONNECT", "evil.example:443", 403},
		{"OPTIONS", "*", 200},
		{"GET", "http://evil.example/", 403}, // absolute form
		{"GET", "http://localhost/", 200},
		{"HEAD", "http://evil.example/", 403},
	} {
		r := httptest.NewRequest(tc.method, "/", nil)
		switch {
		case tc.target == "*":
			r.Host, r.URL.Path = "localhost", "*"
		default:
			r = httptest.NewRequest(tc.method, tc.target, nil)
		}
		code, body := guarded(t, Options{AnyUser: true}, r)
		if code != tc.want {
			t.Errorf("%s %s: got %d, want %d", tc.method, tc.target, code, tc.want)
		}
		if tc.method == "HEAD" && body != "" {
			t.Errorf("HEAD got a body: %s", body)
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
	return guarded(t, opts, r)
}

// guarded is what a local process gets that sends r.
func guarded(t *testing.T, opts Options, r *http.Request) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	local := fakeConn{here: addr(t, "127.0.0.1:8080"), there: addr(t, "127.0.0.1:40000")}
	Guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), opts).ServeHTTP(w, r.WithContext(ConnContext(r.Context(), local)))
	return w.Code, w.Body.String()
}

func FuzzAuthority(f *testing.F) {
	for _, s := range []string{"localhost:80", "[::1]:8080", "[fe80::1%eth0]", "127.0.0.1", "a:b:c", "[", "]", ".", "a:00", "1.1.1.1.:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, host string) {
		a, ok := parseAuthority(host)
		if !ok {
			return
		}
		// What is accepted must mean the same to every other reader.
		if again, ok := parseAuthority(a.String()); !ok || again != a {
			t.Errorf("parseAuthority(%q) = %+v; of that again = %+v, %v", host, a, again, ok)
		}
	})
}

func (a authority) String() string {
	name := a.name
	if a.ip.Is6() {
		name = "[" + name + "]"
	}
	if a.port != "" {
		name += ":" + a.port
	}
	return name
}
