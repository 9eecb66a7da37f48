package replacements

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
)

const testLimit = time.Minute

var createInA = request.RequestInfo{Verb: "create", Namespace: "a"}

func closed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// serve counts a request whose handler reads the whole body, as upstream's do, and then waits
// for the commit.
func (a *Writes) serve(t *testing.T, info request.RequestInfo, exec bool, body io.Reader, commit <-chan struct{}) {
	h := a.count(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(&io.LimitedReader{R: r.Body, N: 100}); err == nil {
			<-commit
		}
	}), func(*http.Request, *request.RequestInfo) bool { return exec })
	r := httptest.NewRequest(http.MethodPost, "/", body)
	h.ServeHTTP(httptest.NewRecorder(), r.WithContext(request.WithRequestInfo(t.Context(), &info)))
}

// A barrier waits only for the earlier requests that may create an object in its namespace.
func TestWritesBarrier(t *testing.T) {
	for name, test := range map[string]struct {
		info   request.RequestInfo
		body   io.Reader
		exec   bool
		awaits bool
	}{
		"create":            {info: createInA, body: strings.NewReader("{}"), awaits: true},
		"empty body":        {info: createInA, awaits: true},
		"update":            {info: request.RequestInfo{Verb: "update", Namespace: "a"}, body: strings.NewReader("{}"), awaits: true},
		"server-side apply": {info: request.RequestInfo{Verb: "patch", Namespace: "a"}, body: strings.NewReader("{}"), awaits: true},
		"get":               {info: request.RequestInfo{Verb: "get", Namespace: "a"}},
		"delete":            {info: request.RequestInfo{Verb: "delete", Namespace: "a"}},
		"exec":              {info: createInA, exec: true},
		"another namespace": {info: request.RequestInfo{Verb: "create", Namespace: "b"}},
		"no namespace":      {info: request.RequestInfo{Verb: "create"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := newWrites(testLimit)
				commit, late := make(chan struct{}), make(chan struct{})
				go all.serve(t, test.info, test.exec, test.body, commit)
				synctest.Wait()
				done, again := all.Barrier("a"), all.Barrier("a")
				if closed(done) == test.awaits {
					t.Errorf("want a wait: %v", test.awaits)
				}
				go all.serve(t, createInA, false, nil, late) // the barrier does not wait for it
				synctest.Wait()
				close(commit)
				synctest.Wait()
				if !closed(done) || !closed(again) {
					t.Error("the requests before the barrier have ended, and it stands")
				}
				close(late)
				synctest.Wait()
				if len(all.of) != 0 {
					t.Errorf("%v is left", all.of)
				}
			})
		})
	}
}
