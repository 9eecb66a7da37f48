package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// output is what govulncheck prints for one vulnerability at each level.
const output = `{"config": {"scan_level": "symbol"}}
{"osv": {"id": "GO-1", "summary": "one"}} {"osv": {"id": "GO-2", "summary": "two"}}
{"finding": {"osv": "GO-1", "fixed_version": "v1.1.0", "trace": [{"module": "m", "version": "v1.0.0"}]}}
{"finding": {"osv": "GO-1", "fixed_version": "v1.1.0", "trace": [{"module": "m", "version": "v1.0.0", "package": "m/p"}]}}
{"finding": {"osv": "GO-2", "trace": [{"module": "n", "version": "v2.0.0", "package": "n/p", "function": "F", "receiver": "T"}]}}
`

func TestRead(t *testing.T) {
	found, err := read([]byte(output))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 2 || found[0].id != "GO-1" || len(found[0].symbols) != 0 || found[0].fixed != "v1.1.0" || found[0].summary != "one" ||
		found[1].id != "GO-2" || strings.Join(found[1].symbols, " ") != "T.F" {
		t.Errorf("got %+v", found)
	}
	if _, err := read([]byte("no JSON")); err == nil {
		t.Error("what is no JSON is no error")
	}
}

// Only vulnerable code that is in the program needs a reason, and each reason a finding.
func TestJudge(t *testing.T) {
	var listed []finding
	for id := range accepted {
		listed = append(listed, finding{id: id, symbols: []string{"F"}})
	}
	for name, c := range map[string]struct {
		found []finding
		wrong string
	}{
		"with reasons":                  {found: listed},
		"in code that is not there":     {found: append([]finding{{id: "GO-1"}}, listed...)},
		"without a reason":              {found: append([]finding{{id: "GO-1", symbols: []string{"T.F"}}}, listed...), wrong: "GO-1"},
		"with a reason that is too old": {found: listed[1:], wrong: "remove its reason"},
	} {
		var out bytes.Buffer
		err := judge(&out, c.found)
		if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%s: got %v, want %q", name, err, c.wrong)
		}
	}
}

// Without a database nothing is checked, and that is said.
func TestUnreachable(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	for _, db := range []string{server.URL, "file:///nowhere/at/all"} {
		var out bytes.Buffer
		if err := run(context.Background(), []string{"-db", db}, &out, &out); err == nil {
			t.Errorf("%s: no error", db)
		}
		out.Reset()
		if err := run(context.Background(), []string{"-db", db, "-if-reachable"}, &out, &out); err != nil || !strings.Contains(out.String(), "NOT RUN") {
			t.Errorf("%s: got %v and %q, want that nothing was checked", db, err, &out)
		}
	}
}
