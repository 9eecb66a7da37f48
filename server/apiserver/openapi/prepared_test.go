package openapi

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// Requests for OpenAPI wait until it is installed, and other requests do not. Otherwise the
// next server of the chain would build all of its documents, and its answer would lack those
// of the others.
func TestOpenAPIWaitsUntilTheChainIsPrepared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		prepared := make(chan struct{})
		h := WhenPrepared(prepared, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
		var answers atomic.Int32
		ask := func(path string) {
			answer := httptest.NewRecorder()
			h.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil).WithContext(t.Context()))
			if answer.Code == http.StatusTeapot {
				answers.Add(1)
			}
		}
		ask("/api/v1/namespaces")
		ask("/readyz")
		if n := answers.Load(); n != 2 {
			t.Errorf("%d answers, want both", n)
		}
		for _, path := range []string{v2Path, v3Path, v3Prefix + "apis/apps/v1"} {
			go ask(path)
		}
		synctest.Wait()
		if n := answers.Load(); n != 2 {
			t.Errorf("%d documents were asked for too early", n-2)
		}
		close(prepared)
		synctest.Wait()
		if n := answers.Load(); n != 5 {
			t.Errorf("%d answers, want all", n)
		}
	})
}
