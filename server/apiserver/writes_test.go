package apiserver

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// Who waits for a namespace waits for what may make an object in it, and was there
// before, and for nothing else.
func TestAwaitWrites(t *testing.T) {
	for name, test := range map[string]struct {
		info   request.RequestInfo
		exec   bool
		awaits bool
	}{
		"create":            {request.RequestInfo{Verb: "create", Namespace: "a"}, false, true},
		"update":            {request.RequestInfo{Verb: "update", Namespace: "a"}, false, true},
		"server-side apply": {request.RequestInfo{Verb: "patch", Namespace: "a"}, false, true},
		"get":               {request.RequestInfo{Verb: "get", Namespace: "a"}, false, false},
		"delete":            {request.RequestInfo{Verb: "delete", Namespace: "a"}, false, false},
		"exec":              {request.RequestInfo{Verb: "create", Namespace: "a"}, true, false},
		"another namespace": {request.RequestInfo{Verb: "create", Namespace: "b"}, false, false},
		"no namespace":      {request.RequestInfo{Verb: "create"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := &writes{of: map[string]map[*write]struct{}{}}
				commit := make(chan struct{})
				h := all.count(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-commit }),
					func(*http.Request, *request.RequestInfo) bool { return test.exec })
				ask := func() {
					r := httptest.NewRequest(http.MethodPost, "/", nil)
					h.ServeHTTP(httptest.NewRecorder(), r.WithContext(request.WithRequestInfo(t.Context(), &test.info)))
				}
				go ask()
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := all.await(ctx, "a"); (err != nil) != test.awaits {
					t.Errorf("got %v, want a wait: %v", err, test.awaits)
				}
				awaited := make(chan error, 1)
				go func() { awaited <- all.await(t.Context(), "a") }()
				synctest.Wait()
				later := all.begin("a") // is not waited for
				close(commit)
				if err := <-awaited; err != nil {
					t.Error(err)
				}
				later()
				synctest.Wait() // the request of another namespace ends, too
				if len(all.of) != 0 {
					t.Errorf("%v is left", all.of)
				}
			})
		})
	}
}
