package openapi

import (
	"net/http"
	"strings"
)

// WhenPrepared returns a handler that delays requests for OpenAPI until prepared is closed,
// because OpenAPI is installed last. Before that, a server further down the chain would answer
// with its own documents, and would have to build all of them.
func WhenPrepared(prepared <-chan struct{}, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, prefix) {
			select {
			case <-prepared:
			case <-r.Context().Done():
			}
		}
		h.ServeHTTP(w, r)
	})
}
