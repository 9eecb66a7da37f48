package apiserver

import (
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// growStacks makes the stacks of a request's goroutines grow once, while they have few frames.
//
// HTTP/2 and upstream's filter for timeouts start a goroutine for each request. Its stack has 2 KB,
// and doubles several times on the way to the storage. Each time, the runtime copies all frames. The
// goroutine of HTTP/2 comes by the outermost handler. That of the filter has no hook, but it calls
// the authenticator soon.
func growStacks(c *genericapiserver.Config) {
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		growing := *c
		if next := c.Authentication.Authenticator; next != nil {
			growing.Authentication.Authenticator = authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
				if !watches(r) {
					growTo32()
				}
				return next.AuthenticateRequest(r)
			})
		}
		chain := build(api, &growing)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !watches(r) {
				growTo8()
			}
			chain.ServeHTTP(w, r)
		})
	}
}

// watches reports whether a request may be a watch. Watches live long, and there are many of them,
// so their stacks stay small.
func watches(r *http.Request) bool { return strings.Contains(r.URL.RawQuery, "watch") }

// growTo8 and growTo32 make the stack of this goroutine have at least 8 and 32 KB. They call a function
// with a frame that needs so much, and the runtime provides it in one step. What is not used later
// is given back by the next collections.

//go:noinline
func growTo8() byte {
	var frame [5 << 10]byte
	return frame[use(&frame[0])]
}

//go:noinline
func growTo32() byte {
	var frame [20 << 10]byte
	return frame[use(&frame[0])]
}

// use keeps the compiler from removing a frame.
//
//go:noinline
func use(b *byte) byte { return *b }
