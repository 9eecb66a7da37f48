package replacements

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/emicklei/go-restful/v3"
)

// FuzzRoutes asks a router with a memory and upstream's router for the routes of the same
// requests. Each line is a request: the method, the path, Accept and Content-Type. Every
// request gets upstream's route or upstream's error, whatever came before it.
func FuzzRoutes(f *testing.F) {
	f.Add("GET /api/v1/namespaces/one/pods/a application/json\nGET /api/v1/namespaces/two/pods/b application/json")
	f.Add("GET /apis/odd/v1/widgets/a\nGET /apis/odd/v1/widgets/special")
	f.Add("GET /apis/odd/v1/gadgets/a\nGET /apis/odd/v1/gadgets/z\nPUT /apis/odd/v1/gadgets/a")
	f.Add("GET /apis/odd/v1/namespaces/x/things\nGET /apis/odd/v1/namespaces/special/things")
	f.Add("GET /apis/conditional/v1/things/a\nGET /apis/conditional/v1/things/b")
	f.Add("PATCH /api/v1/nodes/a * application/merge-patch+json\nPATCH /api/v1/nodes/a * text/html\nGET /api/v1/nodes/a text/html")
	f.Add("GET /api/v1/namespaces/a/status\nGET /api/v1/namespaces/status/status\nGET //api/v1/pods\nGET /api/v1/pods/\nGET /api/v1/%2e%2e/pods")
	f.Add("GET /apis/deep/v1/things/other\nGET /apis/deep/v1/things/special\nGET /api/v1/namespaces/a/pods/b:verb")
	all := services()
	f.Fuzz(func(t *testing.T, requests string) {
		ours := rememberRoutes(restful.CurlyRouter{})
		for line := range strings.Lines(requests) {
			r := requestOf(strings.Fields(line))
			want := chosen(restful.CurlyRouter{}, all, r)
			for _, when := range []string{"first", "again"} {
				if got := chosen(ours, all, r); got != want {
					t.Fatalf("%q, %s: got %s, want %s", line, when, got, want)
				}
			}
		}
	})
}

// requestOf returns a request with these fields, as net/http would pass it to a handler.
func requestOf(fields []string) *http.Request {
	field := func(i int) string {
		if i < len(fields) {
			return fields[i]
		}
		return ""
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Method = field(0)
	if u, err := url.ParseRequestURI(field(1)); err == nil {
		r.URL = u
	} else {
		r.URL.Path = field(1)
	}
	r.Header = http.Header{"Accept": {field(2)}, "Content-Type": {field(3)}}
	return r
}

// The key has everything of a request that upstream's router reads, so requests that differ in
// anything else have the same route. Upstream's functions are in the table of mirrors
// (server/deviations/mirrors), which shows when upstream changes them.
func TestRouteDependsOnTheKey(t *testing.T) {
	all := services()
	for _, path := range []string{"/api/v1/namespaces/a/pods/b", "/api/v1/nodes/a", "/apis/odd/v1/namespaces/a/things/b", "/apis/deep/v1/things/a"} {
		plain := requestOf([]string{"GET", path, "application/json"})
		want := chosen(restful.CurlyRouter{}, all, plain)
		other := requestOf([]string{"GET", path + "?watch=true&x=y#z", "application/json"})
		other.Host, other.RemoteAddr, other.ContentLength, other.Proto = "elsewhere", "192.0.2.1:1", 1000, "HTTP/2.0"
		for i := range 20 {
			other.Header.Set(fmt.Sprintf("X-Other-%d", i), "value")
		}
		other.Header["Accept"] = append(other.Header["Accept"], "text/html") // upstream reads only the first value
		if got := chosen(restful.CurlyRouter{}, all, other); got != want {
			t.Errorf("%s: upstream's route depends on more than the key: got %s, want %s", path, got, want)
		}
		a, _ := routeKeyOf(plain)
		b, _ := routeKeyOf(other)
		if a != b {
			t.Errorf("%s: the keys differ: %+v, %+v", path, a, b)
		}
	}
}
