package insecure

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

// The options of a listener at each kind of address.
var (
	atLoopback = Options{AnyUser: true, Addr: netip.MustParseAddr("127.0.0.1")}
	atAddress  = Options{AnyUser: true, AllowRemote: true, Addr: netip.MustParseAddr("192.0.2.1")}
	atAll      = Options{AnyUser: true, AllowRemote: true, Addr: netip.MustParseAddr("0.0.0.0")}
)

func TestOrigin(t *testing.T) {
	for _, tc := range []struct {
		opts         Options
		host, origin string
		want         int
	}{
		{atLoopback, "localhost:8080", "http://localhost:8080", 200},
		{atLoopback, "127.0.0.1:8080", "http://127.0.0.1:8080", 200},
		{atLoopback, "LocalHost.:08080", "http://localhost:8080", 200},
		{atLoopback, "[::1]:8080", "http://[::1]:8080", 200},
		{atLoopback, "karve.localhost:8080", "http://karve.localhost:8080", 200},
		// Behind "ssh -L 9090:localhost:8080".
		{atLoopback, "localhost:9090", "http://localhost:9090", 200},
		// http's own port need not be named.
		{atLoopback, "localhost", "http://localhost", 200},
		{atLoopback, "localhost:80", "http://localhost", 200},
		{atLoopback, "localhost", "http://localhost:80", 200},
		// Another port of this machine is another site.
		{atLoopback, "localhost:8080", "http://localhost:3000", 403},
		{atLoopback, "127.0.0.1:8080", "http://127.0.0.1:9999", 403},
		{atLoopback, "localhost:8080", "http://localhost", 403},
		{atLoopback, "localhost", "http://localhost:8080", 403},
		// Another name or address of it is a foreign origin, too, whichever server listens there.
		{atLoopback, "127.0.0.1:8080", "http://localhost:8080", 403},
		{atLoopback, "127.0.0.1:8080", "http://127.0.0.2:8080", 403},
		{atLoopback, "localhost:8080", "http://evil.localhost:8080", 403},
		{atLoopback, "localhost:8080", "http://[::1]:8080", 403},
		// Another scheme.
		{atLoopback, "localhost:8080", "https://localhost:8080", 403},
		{atLoopback, "localhost:80", "https://localhost:80", 403},
		{atLoopback, "localhost:8080", "chrome-extension://localhost:8080", 403},
		{atLoopback, "localhost:8080", "file://", 403},
		{atLoopback, "localhost:8080", "null", 403},
		{atLoopback, "localhost:8080", "", 403},
		{atLoopback, "", "http://localhost:8080", 403},
		// What no browser sends.
		{atLoopback, "localhost:8080", "http://localhost:8080/", 403},
		{atLoopback, "localhost:8080", "http://localhost:8080?x", 403},
		{atLoopback, "localhost:8080", "http://localhost:8080#x", 403},
		{atLoopback, "localhost:8080", "http://evil@localhost:8080", 403},
		{atLoopback, "localhost:8080", "http:localhost:8080", 403},
		{atLoopback, "localhost:8080", "localhost:8080", 403},
		{atLoopback, "localhost:8080", "http://localhost:8080 http://evil.example", 403},
		{atLoopback, "localhost:8080", "http://localhost.evil.example:8080", 403},
		{atLoopback, "localhost:8080", "http://localhost:8080@evil.example", 403},
		{atLoopback, "localhost:8080", "http://evil.example", 403},
		{atAddress, "192.0.2.1:8080", "http://192.0.2.1:8080", 200},
		{atAddress, "192.0.2.1:8080", "http://192.0.2.1", 403},
		{atAddress, "192.0.2.1:8080", "http://192.0.2.2:8080", 403},
		// An attacker's site may be at a bare address.
		{atAll, "127.0.0.1:8080", "http://203.0.113.5:8080", 403},
		{atAll, "192.0.2.1:8080", "http://192.0.2.1:8080", 200},
	} {
		for _, also := range []http.Header{{}, {"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}} {
			h := also.Clone()
			h["Origin"] = []string{tc.origin}
			if got, _ := do(t, tc.opts, tc.host, h); got != tc.want {
				t.Errorf("Origin %q to %q, %v: got %d, want %d", tc.origin, tc.host, also, got, tc.want)
			}
		}
	}
	// One good origin does not excuse another.
	if got, _ := do(t, atLoopback, "localhost", http.Header{"Origin": {"http://localhost", "http://evil.example"}}); got != 403 {
		t.Errorf("a foreign second Origin: got %d, want 403", got)
	}
}

func TestFetchSite(t *testing.T) {
	for _, tc := range []struct {
		header http.Header
		want   int
	}{
		{http.Header{"Sec-Fetch-Site": {"same-origin"}}, 200},
		{http.Header{"Sec-Fetch-Site": {"none"}}, 200},
		{http.Header{"Sec-Fetch-Site": {"same-site"}}, 403},
		{http.Header{"Sec-Fetch-Site": {"cross-site"}}, 403},
		{http.Header{"Sec-Fetch-Site": {"what comes after these"}}, 403},
		{http.Header{"Sec-Fetch-Site": {""}}, 403},
		{http.Header{"Sec-Fetch-Site": {"none", "same-site"}}, 403},
		{http.Header{"Sec-Fetch-Site": {"same-site"}, "Origin": {"http://localhost:8080"}}, 403},
		{http.Header{"Sec-Fetch-Site": {"same-origin"}, "Origin": {"http://localhost:3000"}}, 403},
		// A link on the page of another site.
		{http.Header{"Sec-Fetch-Site": {"cross-site"}, "Referer": {"https://evil.example/"}}, 403},
		// Through "kubectl proxy", which leaves the browser's headers as they are.
		{http.Header{"Sec-Fetch-Site": {"same-origin"}, "Referer": {"http://localhost:8001/api"}}, 200},
	} {
		if got, _ := do(t, atLoopback, "localhost:8080", tc.header); got != tc.want {
			t.Errorf("%v: got %d, want %d", tc.header, got, tc.want)
		}
	}
}

// What a page can send without a preflight is refused whoever sends it, unless the
// browser says that the page is our own. Clients name the type of what they send.
func TestBodies(t *testing.T) {
	const kubectl = "kubectl/v1.37.2 (linux/amd64) kubernetes/0a1b2c3"
	for _, tc := range []struct {
		name   string
		method string
		body   string
		header http.Header
		want   int
	}{
		{"a Blob without a type", "POST", "{}", nil, 403},
		{"the same with its browser's name", "POST", "{}", http.Header{"User-Agent": {"Mozilla/5.0 kubernetes/1"}}, 403},
		{"an empty type", "POST", "{}", http.Header{"Content-Type": {""}}, 403},
		{"text", "POST", "{}", http.Header{"Content-Type": {"text/plain"}}, 403},
		{"text of a charset", "PUT", "{}", http.Header{"Content-Type": {"Text/Plain; charset=UTF-8"}}, 403},
		{"a form, and curl -d", "POST", "a=b", http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "User-Agent": {"curl/8.5.0"}}, 403},
		{"a form with files", "POST", "--x", http.Header{"Content-Type": {"multipart/form-data; boundary=x"}}, 403},
		{"a type that cannot be read", "POST", "{}", http.Header{"Content-Type": {"application/json; ="}}, 403},
		{"two types", "POST", "{}", http.Header{"Content-Type": {"application/json", "text/plain"}}, 403},
		{"text of a DELETE", "DELETE", "{}", http.Header{"Content-Type": {"text/plain"}}, 403},
		{"kubectl create --raw", "POST", "{}", http.Header{"User-Agent": {kubectl}}, 200},
		{"kubectl with a form", "POST", "{}", http.Header{"User-Agent": {kubectl}, "Content-Type": {"text/plain"}}, 403},
		{"JSON", "POST", "{}", http.Header{"Content-Type": {"application/json"}}, 200},
		{"YAML", "POST", "a: b", http.Header{"Content-Type": {"application/yaml"}}, 200},
		{"protobuf", "POST", "k8s", http.Header{"Content-Type": {"application/vnd.kubernetes.protobuf"}}, 200},
		{"CBOR", "POST", "\xd9\xd9\xf7", http.Header{"Content-Type": {"application/cbor"}}, 200},
		{"a patch", "PATCH", "{}", http.Header{"Content-Type": {"application/apply-patch+yaml"}}, 200},
		{"options of a DELETE", "DELETE", "{}", http.Header{"Content-Type": {"application/json"}}, 200},
		{"exec, no body", "POST", "", http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}}, 200},
		{"DELETE, no body", "DELETE", "", nil, 200},
		// A form of a page that a Pod serves through this port.
		{"our own form", "POST", "a=b", http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "Origin": {"http://localhost:8080"}, "Sec-Fetch-Site": {"same-origin"}}, 200},
		{"our own form, older browser", "POST", "a=b", http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "Origin": {"http://localhost:8080"}}, 200},
	} {
		r := httptest.NewRequest(tc.method, "/api/v1/namespaces", strings.NewReader(tc.body))
		r.Host = "localhost:8080"
		if tc.header != nil {
			r.Header = tc.header
		}
		if got, body := guarded(t, atLoopback, r); got != tc.want {
			t.Errorf("%s: got %d %q, want %d", tc.name, got, body, tc.want)
		}
		if tc.body == "" {
			continue
		}
		r = r.Clone(t.Context())
		r.ContentLength = -1 // chunked, or HTTP/2 without a length
		if got, body := guarded(t, atLoopback, r); got != tc.want {
			t.Errorf("%s, of no length: got %d %q, want %d", tc.name, got, body, tc.want)
		}
	}
}

// No page of another origin gets an answer, not even as an image or a script: a
// browser that sends neither Origin nor Sec-Fetch-Site with those obeys this header.
func TestAnswersAreForTheirOwnOrigin(t *testing.T) {
	for _, host := range []string{"localhost:8080", "evil.example"} {
		r := httptest.NewRequest("GET", "http://"+host+"/api", nil)
		w := httptest.NewRecorder()
		local := fakeConn{here: addr(t, "127.0.0.1:8080"), there: addr(t, "127.0.0.1:40000")}
		Guard(http.NotFoundHandler(), atLoopback).ServeHTTP(w, r.WithContext(ConnContext(r.Context(), local)))
		if got := w.Header().Get("Cross-Origin-Resource-Policy"); got != "same-origin" {
			t.Errorf("%s: got Cross-Origin-Resource-Policy %q, want same-origin", host, got)
		}
	}
}

func FuzzOrigin(f *testing.F) {
	f.Add("http://localhost:3000", "localhost:8080")
	f.Add("http://[::1]:80", "[::1]")
	f.Add("http://localhost:8080@evil", "localhost:8080")
	f.Fuzz(func(t *testing.T, origin, host string) {
		if !sameOrigin(origin, host) {
			return
		}
		// What a browser writes of the host that it asks, and nothing else.
		a, ok := parseAuthority(host)
		if !ok || !sameOrigin("http://"+a.String(), host) || !strings.HasPrefix(strings.ToLower(origin), "http://") {
			t.Errorf("%q is the origin of %q", origin, host)
		}
	})
}
