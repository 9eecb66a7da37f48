package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestManyLabels(t *testing.T) {
	body := manyLabels(abandonedLabels)
	if limit := 3 << 20; len(body) > limit { // MaxRequestBodyBytes of the API server
		t.Errorf("the body has %d bytes, more than %d", len(body), limit)
	}
	var object struct {
		Metadata struct{ Labels map[string]string }
	}
	if err := json.Unmarshal(body, &object); err != nil || len(object.Metadata.Labels) != abandonedLabels {
		t.Errorf("got %d labels, %v, want %d", len(object.Metadata.Labels), err, abandonedLabels)
	}
}

func TestAbandon(t *testing.T) {
	for _, test := range []struct {
		name    string
		handler http.HandlerFunc
		after   time.Duration
		want    string // in the error
	}{
		{"never answered", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, time.Millisecond, ""},
		{"answered", func(http.ResponseWriter, *http.Request) {}, time.Minute, "answered before the client left"},
		{"refused", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", http.StatusForbidden) }, time.Minute, "403 Forbidden"},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(test.handler)
			defer server.Close()
			p := &prober{base: server.URL, client: server.Client()}
			err := p.abandon(t.Context(), 2, nil, test.after)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
