package replacements

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	genericapiserver "k8s.io/apiserver/pkg/server"
)

// forwarded are the headers with which a proxy on this machine shows that the client is
// elsewhere.
var forwarded = []string{"X-Forwarded-For", "Forwarded", "Via"}

// identity is the value of Accept-Encoding that asks for an uncompressed response. Nothing may
// write to it; adding a header value makes a new slice.
var identity = []string{"identity"}

// LeaveUncompressed changes a chain so that it does not compress objects for a client on this
// machine. client-go asks for gzip wherever the server is. Compressing and decompressing took
// half of the CPU time of a large list, with no network in between.
func LeaveUncompressed(c *genericapiserver.Config) {
	putInFront(c, uncompressed)
}

// putInFront makes filter the first filter of a chain.
func putInFront(c *genericapiserver.Config, filter func(http.Handler) http.Handler) {
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return filter(build(api, c))
	}
}

// uncompressed must be the first filter. No other filter has read the request's headers yet,
// so it can change one in place.
func uncompressed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if wantsGzip(r) && isForObjects(r.URL.Path) && isFromThisMachine(r) {
			r.Header["Accept-Encoding"] = identity
		}
		next.ServeHTTP(w, r)
	})
}

// wantsGzip reports whether upstream would compress the response. It returns false for a
// client that gives weights to encodings, because that client may have excluded identity.
func wantsGzip(r *http.Request) bool {
	encoding := r.Header.Get("Accept-Encoding")
	return strings.Contains(encoding, "gzip") && !strings.Contains(encoding, ";")
}

// isForObjects reports whether the path is one of API objects. Responses that are proxied from
// Pods, Services and nodes are not Karve's to change, and OpenAPI documents are compressed
// once for many clients.
func isForObjects(path string) bool {
	return (strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/")) && !strings.Contains(path, "/proxy")
}

// isFromThisMachine reports whether the client's address belongs to this machine: it is a
// loopback address, or the address that the client has connected to.
func isFromThisMachine(r *http.Request) bool {
	for _, name := range forwarded {
		if len(r.Header[name]) > 0 {
			return false
		}
	}
	client, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	if client.Addr().Unmap().IsLoopback() {
		return true
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && client.Addr().Unmap() == local.AddrPort().Addr().Unmap()
}
