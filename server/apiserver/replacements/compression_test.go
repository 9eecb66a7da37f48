package replacements

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestCompressionForThisMachine(t *testing.T) {
	const list = "/api/v1/namespaces/default/configmaps"
	for name, c := range map[string]struct {
		path, from, at string // at: the server's address, if it matters
		headers        map[string]string
		want           string // Accept-Encoding as upstream sees it
	}{
		"loopback":                 {path: list, want: "identity"},
		"loopback, IPv6":           {path: list, from: "[::1]:5000", want: "identity"},
		"loopback, mapped to IPv6": {path: list, from: "[::ffff:127.0.0.1]:5000", want: "identity"},
		"our own address":          {path: list, from: "192.0.2.7:5000", at: "192.0.2.7", want: "identity"},
		"our own address, IPv6":    {path: list, from: "[2001:db8::7]:5000", at: "2001:db8::7", want: "identity"},
		"a group's objects":        {path: "/apis/apps/v1/deployments", want: "identity"},
		"several codings":          {path: list, headers: map[string]string{"Accept-Encoding": "deflate, gzip, br"}, want: "identity"},

		"another machine":            {path: list, from: "192.0.2.8:5000", at: "192.0.2.7", want: "gzip"},
		"an address that is none":    {path: list, from: "@", want: "gzip"},
		"a relay, old header":        {path: list, headers: map[string]string{"X-Forwarded-For": "192.0.2.8"}, want: "gzip"},
		"a relay, RFC 7239":          {path: list, headers: map[string]string{"Forwarded": "for=192.0.2.8"}, want: "gzip"},
		"a relay that hides it":      {path: list, headers: map[string]string{"Via": "1.1 relay"}, want: "gzip"},
		"who does not want it as is": {path: list, headers: map[string]string{"Accept-Encoding": "gzip, identity;q=0"}, want: "gzip, identity;q=0"},
		"who asks for nothing":       {path: list, headers: map[string]string{"Accept-Encoding": ""}, want: ""},
		"a document":                 {path: "/openapi/v2", want: "gzip"},
		"discovery":                  {path: "/apis", want: "gzip"},
		"a Service's answer":         {path: "/api/v1/namespaces/default/services/web/proxy/index.html", want: "gzip"},
		"a node's answer":            {path: "/api/v1/nodes/a/proxy/metrics", want: "gzip"},
		"an old node's answer":       {path: "/api/v1/proxy/nodes/a/metrics", want: "gzip"},
	} {
		r := httptest.NewRequest(http.MethodGet, c.path, nil)
		r.RemoteAddr = "127.0.0.1:5000"
		if c.from != "" {
			r.RemoteAddr = c.from
		}
		if c.at != "" {
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.ParseIP(c.at), Port: 6443}))
		}
		r.Header.Set("Accept-Encoding", "gzip")
		for name, value := range c.headers {
			r.Header.Set(name, value)
		}
		var got string
		uncompressed(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			got = r.Header.Get("Accept-Encoding")
		})).ServeHTTP(httptest.NewRecorder(), r)
		if got != c.want {
			t.Errorf("%s: Accept-Encoding: got %q, want %q", name, got, c.want)
		}
	}
}
