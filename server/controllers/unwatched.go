package controllers

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/controller-manager/pkg/clientbuilder"

	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/server/deviations"
)

// metadataClient is what upstream calls the client of the informers that have the metadata of all objects
// (cmd/kube-controller-manager/app, CreateControllerContext).
const metadataClient = "metadata-informers"

// newRootBuilder returns the builder of the controllers' own clients. unwatched may be nil.
func newRootBuilder(kubeconfig *rest.Config, unwatched func(resource string, status int, err error), switches deviations.Switches) clientbuilder.ControllerClientBuilder {
	upstreams := clientbuilder.SimpleControllerClientBuilder{ClientConfig: kubeconfig}
	if unwatched == nil || !switches.On(deviations.Unwatched) {
		return upstreams
	}
	return rootBuilder{upstreams, unwatched}
}

// rootBuilder is the builder of the controllers' own clients. Its client for metadata says which resource
// cannot be watched: upstream's log has one line for each attempt, for ever, without a name.
type rootBuilder struct {
	clientbuilder.ControllerClientBuilder
	unwatched func(resource string, status int, err error)
}

func (b rootBuilder) Config(name string) (*rest.Config, error) {
	config, err := b.ControllerClientBuilder.Config(name)
	if err == nil && name == metadataClient {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return &watchedClient{next: next, report: b.unwatched, failing: map[string]bool{}}
		})
	}
	return config, err
}

// watchedClient reports a resource when a list or watch of it fails, and again only after one has succeeded.
type watchedClient struct {
	next   http.RoundTripper
	report func(resource string, status int, err error)

	mu      sync.Mutex
	failing map[string]bool
}

func (c *watchedClient) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.next.RoundTrip(r)
	resource, ok := collection(r.URL.Path)
	if !ok || r.Method != http.MethodGet || r.Context().Err() != nil {
		return resp, err
	}
	status := 0
	if err == nil {
		status = resp.StatusCode
	}
	failed := err != nil || status >= http.StatusBadRequest && status != http.StatusGone // which is the end of a watch
	c.mu.Lock()
	before := c.failing[resource]
	if failed {
		c.failing[resource] = true
	} else {
		delete(c.failing, resource)
	}
	c.mu.Unlock()
	if failed && !before {
		c.report(resource, status, err)
	}
	if status == http.StatusNotFound && logbridge.Custom(resource) {
		return gone(resp, resource)
	}
	return resp, err
}

// gone is the response that a custom resource does not exist, with its name. Without it, upstream's line could
// be about any resource, and would hide a failure of another one if it were demoted.
func gone(resp *http.Response, resource string) (*http.Response, error) {
	resp.Body.Close()
	text, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: resource + logbridge.GoneResource,
	})
	if err != nil {
		return nil, err
	}
	named := *resp
	named.Header = http.Header{"Content-Type": {"application/json"}, "Content-Length": {strconv.Itoa(len(text))}}
	named.Body, named.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	return &named, nil
}

// WrappedRoundTripper returns the transport below (k8s.io/apimachinery/pkg/util/net).
func (c *watchedClient) WrappedRoundTripper() http.RoundTripper { return c.next }

// collection is the resource whose objects in all namespaces a path names, such as widgets.example.com.
func collection(path string) (resource string, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) == 3 && parts[0] == "api":
		return parts[2], true
	case len(parts) == 4 && parts[0] == "apis":
		return parts[3] + "." + parts[1], true
	}
	return "", false
}
