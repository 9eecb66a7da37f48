package replacements

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	genericapiserver "k8s.io/apiserver/pkg/server"
)

// forwarded are the headers by which a proxy on this machine tells that the
// client is somewhere else.
var forwarded = []string{"X-Forwarded-For", "Forwarded", "Via"}

// identity is what Accept-Encoding says of a client that wants the bytes as they
// are. Nobody writes to it: adding to a header makes a new slice.
var identity = []string{"identity"}

// LeaveUncompressed changes a chain so that objects for a client on this machine
// are not compressed: client-go asks for gzip wherever the server is, and half
// of the CPU time of a large list went into packing and unpacking it, with no
// network in between.
func LeaveUncompressed(c *genericapiserver.Config) {
	putInFront(c, uncompressed)
}

// putInFront makes a filter the first of a chain.
func putInFront(c *genericapiserver.Config, filter func(http.Handler) http.Handler) {
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return filter(build(api, c))
	}
}

// uncompressed comes before everything else: nobody else reads the request's
// headers yet, so one can be changed in place.
func uncompressed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if wantsGzip(r) && isForObjects(r.URL.Path) && isFromThisMachine(r) {
			r.Header["Accept-Encoding"] = identity
		}
		next.ServeHTTP(w, r)
	})
}

// wantsGzip tells whether upstream would compress for this request. Who says
// how much a coding is wanted may have excluded identity, and is left alone.
func wantsGzip(r *http.Request) bool {
	encoding := r.Header.Get("Accept-Encoding")
	return strings.Contains(encoding, "gzip") && !strings.Contains(encoding, ";")
}

// isForObjects tells whether the path is one of API objects. What is passed on
// to Pods, Services and nodes is not our answer, and documents are compressed
// once for many.
func isForObjects(path string) bool {
	return (strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/")) && !strings.Contains(path, "/proxy")
}

// isFromThisMachine tells whether the client's address is one of this machine's:
// loopback's, or the one it has connected to.
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
