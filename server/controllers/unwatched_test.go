package controllers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	extensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	builtin "k8s.io/client-go/kubernetes/scheme"
	metadatas "k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver/scheme"

	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/server/deviations"
)

// The definitions of what is custom have to follow Kubernetes.
func TestGroupsOfKubernetesAreNotCustom(t *testing.T) {
	for _, s := range []*runtime.Scheme{builtin.Scheme, extensions.Scheme, aggregator.Scheme} {
		for _, gv := range s.PrioritizedVersionsAllGroups() {
			if logbridge.Custom("widgets." + gv.Group) {
				t.Errorf("group %s counts as custom", gv.Group)
			}
		}
	}
	for _, resource := range []string{"widgets.example.com", "gateways.gateway.networking.k8s.io", "pods.metrics.k8s.io"} {
		if !logbridge.Custom(resource) {
			t.Errorf("%s does not count as custom", resource)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestAResourceThatCannotBeWatchedIsNamedOnce(t *testing.T) {
	var reported []string
	status, failure := http.StatusOK, error(nil)
	b := newRootBuilder(&rest.Config{
		Host: "http://karve.invalid",
		Transport: roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Body: http.NoBody}, failure
		}),
	}, func(resource string, status int, err error) {
		reported = append(reported, fmt.Sprint(resource, " ", status, " ", err))
	}, deviations.Switches{})
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
	// The error names the resource, for a list and for a watch.
	status, failure = http.StatusNotFound, nil
	config, err := b.Config(metadataClient)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := metadatas.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for group, want := range map[string]string{"example.com": "widgets.example.com is no longer served", "apps": "the server could not find the requested resource"} {
		client := objects.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"})
		_, listErr := client.List(t.Context(), metav1.ListOptions{})
		_, watchErr := client.Watch(t.Context(), metav1.ListOptions{})
		for _, err := range []error{listErr, watchErr} {
			if !apierrors.IsNotFound(err) || err.Error() != want {
				t.Errorf("%s: got %v, want %s", group, err, want)
			}
		}
	}
	want := []string{"widgets.example.com 404 <nil>", "pods 503 <nil>", "secrets 0 refused", "widgets.example.com 404 <nil>", "widgets.example.com 404 <nil>", "widgets.apps 404 <nil>"}
	slices.Sort(reported)
	slices.Sort(want)
	if !slices.Equal(reported, want) {
		t.Errorf("reported %q, want %q", reported, want)
	}
}

// Informers get the same from the client as from upstream's, except for the text about a custom resource that
// does not exist. Switched off, it reports nothing.
func TestUnwatchedResourcesFailAsUpstreams(t *testing.T) {
	off, err := deviations.Parse([]string{deviations.Unwatched.Name})
	if err != nil {
		t.Fatal(err)
	}
	status, failure, body, reports := http.StatusOK, error(nil), "", 0
	clientOf := func(switches deviations.Switches) metadatas.Interface {
		kubeconfig := &rest.Config{
			Host: "http://karve.invalid", RateLimiter: flowcontrol.NewFakeAlwaysRateLimiter(),
			Transport: roundTrip(func(*http.Request) (*http.Response, error) {
				if failure != nil {
					return nil, failure
				}
				header := http.Header{"Content-Type": {"application/json"}}
				return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(body))}, nil
			}),
		}
		config, err := newRootBuilder(kubeconfig, func(string, int, error) { reports++ }, switches).Config(metadataClient)
		if err != nil {
			t.Fatal(err)
		}
		client, err := metadatas.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return client
	}
	karves, upstreams := clientOf(deviations.Switches{}), clientOf(off)
	ask := func(client metadatas.Interface, group, verb string) (outcome string, _ error) {
		resource := client.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"})
		var got any
		var err error
		if verb == "list" {
			got, err = resource.List(t.Context(), metav1.ListOptions{})
		} else {
			w, failed := resource.Watch(t.Context(), metav1.ListOptions{})
			if err = failed; err == nil {
				event := <-w.ResultChan()
				got = event.Object
				w.Stop()
			}
		}
		if status := apierrors.APIStatus(nil); errors.As(err, &status) {
			got = status.Status()
		}
		return fmt.Sprintf("%+v, %v", got, err), err
	}
	for _, group := range []string{"example.com", "apps"} {
		for _, verb := range []string{"list", "watch"} {
			for _, answer := range []struct {
				status int
				body   string
				err    error
			}{
				{200, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"7"}}`, nil},
				{404, "404 page not found", nil},
				{404, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`, nil},
				{403, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"no","code":403}`, nil},
				{410, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","message":"old","code":410}`, nil},
				{500, "broken", nil},
				{0, "", errors.New("refused")},
			} {
				status, body, failure = answer.status, answer.body, answer.err
				got, gotErr := ask(karves, group, verb)
				reports = 0
				want, wantErr := ask(upstreams, group, verb)
				if reports > 0 {
					t.Errorf("%s of %s, %d: it is off, and reports", verb, group, status)
				}
				if status == 404 && group == "example.com" {
					if !apierrors.IsNotFound(gotErr) || !apierrors.IsNotFound(wantErr) || gotErr.Error() != "widgets.example.com is no longer served" || strings.Contains(wantErr.Error(), "widgets") {
						t.Errorf("%s of %s, %d %s: got %v, upstream has %v", verb, group, status, body, gotErr, wantErr)
					}
				} else if got != want {
					t.Errorf("%s of %s, %d %s: got %s, upstream has %s", verb, group, status, body, got, want)
				}
			}
		}
	}
}
