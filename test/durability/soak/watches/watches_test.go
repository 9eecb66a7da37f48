package watches

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A new list counts apart from the renewal of a watch, and a watch is renewed as often as -renew
// says.
func TestRequestsAreCounted(t *testing.T) {
	var timeout string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { timeout = r.URL.Query().Get("timeoutSeconds") }))
	defer server.Close()
	seen := &requests{renew: 10 * time.Second, begun: map[string]int{}}
	client := &http.Client{Transport: counting{http.DefaultTransport, seen}}
	for _, path := range []string{
		"/apis", "/api/v1", // discovery
		"/api/v1/pods?resourceVersion=0&limit=500", "/api/v1/pods?resourceVersion=7",
		"/api/v1/nodes?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
		"/api/v1/nodes?watch=true&resourceVersion=7&timeoutSeconds=400", "/api/v1/pods?watch=true&resourceVersion=7&timeoutSeconds=400",
	} {
		resp, err := client.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	if seen.begun["/api/v1/pods"] != 2 || seen.begun["/api/v1/nodes"] != 1 || len(seen.begun) != 2 || seen.renewals != 2 {
		t.Errorf("begun %v, renewed %d; want 2 of pods, 1 of nodes and 2", seen.begun, seen.renewals)
	}
	if seconds, err := strconv.Atoi(timeout); err != nil || seconds < 7 || seconds > 13 {
		t.Errorf("the last watch lasts %q seconds, want about 10", timeout)
	}
}

// The error has every kind of failure, and there is none without a failure.
func TestReport(t *testing.T) {
	w := &watchers{types: []string{"a", "b"}, seen: &requests{begun: map[string]int{}, renewals: 2}}
	var out strings.Builder
	if err := report(&out, options{}, w, 5, "level=info msg=fine\n"); err != nil {
		t.Errorf("all is well: %v", err)
	}
	for _, want := range []string{"2 types", "5 writes", "lists again            0", "lines in the log       0"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s\ndoes not say %q", out.String(), want)
		}
	}
	w.seen.begun["/api/v1/limitranges"] = 3
	w.seen.renewals = 1
	err := report(io.Discard, options{}, w, 5, "watch chan error: etcdserver: mvcc: required revision has been compacted\n")
	for _, want := range []string{"/api/v1/limitranges was listed again 3 times", "the server's log: watch chan error", "1 renewals of 2 watches"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\ndoes not say %q", err, want)
		}
	}
}
