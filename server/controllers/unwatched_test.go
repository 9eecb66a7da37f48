package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/controller-manager/pkg/clientbuilder"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestAResourceThatCannotBeWatchedIsNamedOnce(t *testing.T) {
	var reported []string
	status, failure := http.StatusOK, error(nil)
	b := rootBuilder{
		clientbuilder.SimpleControllerClientBuilder{ClientConfig: &rest.Config{
			Host: "http://karve.invalid",
			Transport: roundTrip(func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: status, Body: http.NoBody}, failure
			}),
		}},
		func(resource string, status int, err error) {
			reported = append(reported, fmt.Sprint(resource, " ", status, " ", err))
		},
	}
	clientOf := func(name string) http.RoundTripper {
		config, err := b.Config(name)
		if err != nil {
			t.Fatal(err)
		}
		transport, err := rest.TransportFor(config)
		if err != nil {
			t.Fatal(err)
		}
		return transport
	}
	metadata, other := clientOf(metadataClient), clientOf("shared-informers")
	ask := func(client http.RoundTripper, ctx context.Context, method, path string, s int, err error) {
		status, failure = s, err
		r, _ := http.NewRequestWithContext(ctx, method, "http://karve.invalid"+path, nil)
		if resp, err := client.RoundTrip(r); err == nil {
			resp.Body.Close()
		}
	}
	const widgets = "/apis/example.com/v1/widgets"
	ended, end := context.WithCancel(t.Context())
	end()
	for range 3 {
		ask(metadata, t.Context(), "GET", widgets, 404, nil)
		ask(metadata, t.Context(), "GET", widgets+"?watch=true", 404, nil)
	}
	ask(metadata, t.Context(), "GET", "/api/v1/pods", 503, nil)
	ask(metadata, t.Context(), "GET", "/api/v1/secrets", 0, errors.New("refused"))
	// These are none.
	ask(metadata, t.Context(), "GET", "/api/v1/services", 410, nil)
	ask(metadata, t.Context(), "GET", "/api/v1/namespaces/a/pods/b", 404, nil)
	ask(metadata, t.Context(), "DELETE", "/api/v1/configmaps", 404, nil)
	ask(metadata, ended, "GET", "/api/v1/nodes", 0, context.Canceled)
	ask(other, t.Context(), "GET", "/api/v1/events", 404, nil)
	// Again, after it could be watched.
	ask(metadata, t.Context(), "GET", widgets, 200, nil)
	ask(metadata, t.Context(), "GET", widgets, 404, nil)
	want := []string{"widgets.example.com 404 <nil>", "pods 503 <nil>", "secrets 0 refused", "widgets.example.com 404 <nil>"}
	if !slices.Equal(reported, want) {
		t.Errorf("reported %q, want %q", reported, want)
	}
}
