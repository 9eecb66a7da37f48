package apiserver

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"testing"
	"unsafe"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// A stack that has grown once is not moved again by the calls for which it grew.
func TestGrowStacks(t *testing.T) {
	runtime.GC()                                     // chooses how large new stacks are: now, few are deep
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the collector makes stacks smaller
	for _, test := range []struct {
		query                  string
		handler, authenticator bool // whether its stack is moved
	}{
		{"", false, false},
		{"?watch=true", true, true},
	} {
		var outside, inside bool
		c := &genericapiserver.Config{BuildHandlerChainFunc: func(_ http.Handler, c *genericapiserver.Config) http.Handler {
			return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				outside = moved(4 << 10)
				done := make(chan struct{})
				go func() { // as the filter for timeouts does
					defer close(done)
					if _, ok, err := c.Authentication.Authenticator.AuthenticateRequest(r); !ok || err != nil {
						t.Errorf("%q: authenticated %t, %v", test.query, ok, err)
					}
				}()
				<-done
			})
		}}
		c.Authentication.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			inside = moved(16 << 10)
			return nil, true, nil
		})
		growStacks(c)
		chain := c.BuildHandlerChainFunc(nil, c)
		done := make(chan struct{})
		go func() { // as HTTP/2 does
			defer close(done)
			chain.ServeHTTP(nil, httptest.NewRequest(http.MethodGet, "/"+test.query, nil))
		}()
		<-done
		if outside != test.handler || inside != test.authenticator {
			t.Errorf("%q: the stacks were moved: %t and %t, want %t and %t", test.query, outside, inside, test.handler, test.authenticator)
		}
	}
}

// moved reports whether the stack of this goroutine is moved when calls need more bytes of it.
//
//go:noinline
func moved(bytes int) bool {
	var local byte
	before := uintptr(unsafe.Pointer(&local))
	deep(bytes)
	return uintptr(unsafe.Pointer(&local)) != before
}

//go:noinline
func deep(bytes int) byte {
	var frame [256]byte
	if bytes > 0 {
		return frame[deep(bytes-len(frame))]
	}
	return use(&frame[0])
}
