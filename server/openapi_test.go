package server_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-openapi/pkg/handler3"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server"
)

// Karve builds the documents on demand, and upstream before it serves. Every byte must be the
// same, immediately after the start and after a change of what is served. Only the hashes in the index are Karve's
// own, and mean the same to clients: whoever has the right one may keep the document, and whoever has another is sent to the
// document.
func TestOpenAPIIsUpstreams(t *testing.T) {
	ours, upstreams := start(t, withoutControllers), start(t, func(c *server.Config) { withoutControllers(c); c.Upstream = []string{"openapi"} })
	both := []*cluster{ours, upstreams}
	t.Cleanup(func() { ours.cancel(); upstreams.cancel() }) // cancels both before the cleanup of either waits for its end
	compareOpenAPI(t, ours, upstreams, "after the start", `"apis/apps/v1"`)

	for _, c := range both {
		create(t, c.definitions(t), boatDefinition())
	}
	compareOpenAPI(t, ours, upstreams, "with a CustomResourceDefinition", `"apis/karve.test/v1"`)

	for _, c := range both {
		setBoatDescription(t, c, "a boat that has been changed")
	}
	compareOpenAPI(t, ours, upstreams, "with a changed CustomResourceDefinition", "a boat that has been changed")

	for _, c := range both {
		c.aggregate(t, "default", extensionWithOpenAPI(t))
	}
	compareOpenAPI(t, ours, upstreams, "with an APIService", "Ship of another server")
}

// What needs the types' schemas must not need the documents.
func TestApplyNeedsNoOpenAPIDocuments(t *testing.T) {
	c := start(t, withoutControllers)
	apply := func(manifest string) error {
		_, err := c.CoreV1().ConfigMaps("default").Patch(t.Context(), "at-once", types.ApplyPatchType, []byte(manifest),
			metav1.PatchOptions{FieldManager: "test", FieldValidation: metav1.FieldValidationStrict})
		return err
	}
	if err := apply(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"at-once"},"data":{"a":"1"}}`); err != nil {
		t.Errorf("server-side apply: %v", err)
	}
	if err := apply(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"at-once"},"date":{"a":"1"}}`); err == nil || !strings.Contains(err.Error(), "date") {
		t.Errorf("an unknown field: got %v, want an error that names it", err)
	}
}

// withoutControllers leaves out what only one server in a process can have.
func withoutControllers(c *server.Config) { c.NoControllers, c.DisableScheduler = true, true }

func setBoatDescription(t *testing.T, c *cluster, description string) {
	t.Helper()
	definitions := c.definitions(t)
	eventually.Nil(t, "the CustomResourceDefinition is changed", func() error {
		definition, err := definitions.Get(t.Context(), "boats.karve.test", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, version := range definition.Spec.Versions {
			version.Schema.OpenAPIV3Schema.Description = description
		}
		_, err = definitions.Update(t.Context(), definition, metav1.UpdateOptions{})
		return err
	})
}

// extensionWithOpenAPI is extension with OpenAPI documents of both versions.
func extensionWithOpenAPI(t *testing.T) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", extension(t))
	serve := func(path, body string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Etag", fmt.Sprintf("%q", fmt.Sprintf("%x", sha256.Sum256([]byte(body)))))
			_, _ = io.WriteString(w, body)
		})
	}
	serve("/openapi/v2", `{"swagger":"2.0","info":{"title":"fleet","version":"v1"},
		"paths":{"/apis/fleet.test/v1/ships":{"get":{"description":"list ships","operationId":"listShips","responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/Ship"}}}}}},
		"definitions":{"Ship":{"description":"Ship of another server","type":"object"}}}`)
	serve("/openapi/v3", `{"paths":{"apis/fleet.test/v1":{"serverRelativeURL":"/openapi/v3/apis/fleet.test/v1?hash=1"}}}`)
	serve("/openapi/v3/apis/fleet.test/v1", `{"openapi":"3.0.0","info":{"title":"fleet","version":"v1"},"paths":{},
		"components":{"schemas":{"Ship":{"description":"Ship of another server","type":"object"}}}}`)
	return mux
}

// compareOpenAPI waits until both control planes serve the same documents, and marker is in
// one of the documents.
func compareOpenAPI(t *testing.T, ours, upstreams *cluster, when, marker string) {
	t.Helper()
	eventually.Nil(t, "the same OpenAPI documents "+when, func() error {
		got, want := ours.openAPI(t), upstreams.openAPI(t)
		var errs []error
		for _, path := range slices.Sorted(maps.Keys(want)) {
			if got[path] != want[path] {
				errs = append(errs, fmt.Errorf("%s: got %d bytes, upstream has %d:\n%.200s\n%.200s", path, len(got[path]), len(want[path]), differ(got[path], want[path]), differ(want[path], got[path])))
			}
		}
		if len(got) != len(want) {
			errs = append(errs, fmt.Errorf("got %d documents, upstream has %d", len(got), len(want)))
		}
		if !slices.ContainsFunc(slices.Collect(maps.Values(got)), func(document string) bool { return strings.Contains(document, marker) }) {
			errs = append(errs, fmt.Errorf("%s is in none of %d documents", marker, len(got)))
		}
		return errors.Join(errs...)
	})
}

// differ returns a from the place where it begins to differ from b.
func differ(a, b string) string {
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			return a[max(0, i-60):]
		}
	}
	return "(all of it)"
}

// hashes are those of documents, in the URLs of an index.
var hashes = regexp.MustCompile(`\?hash=[0-9A-F]+`)

// openAPI requests every document, with the headers that clients read.
func (c *cluster) openAPI(t *testing.T) map[string]string {
	t.Helper()
	client := httpClient(t, c.admin)
	all := map[string]string{}
	var last *url.URL // to which the last request was sent
	fetch := func(path, accept string) string {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.URL+path, nil)
		fatal(t, err)
		r.Header.Set("Accept", accept)
		answer, err := client.Do(r)
		fatal(t, err)
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		fatal(t, err)
		headers := ""
		for _, name := range []string{"Content-Type", "Etag", "Vary", "Cache-Control"} {
			headers += fmt.Sprintf("%s: %v\n", name, answer.Header.Values(name))
		}
		last = answer.Request.URL
		all[accept+" "+hashes.ReplaceAllString(path, "?hash")] = hashes.ReplaceAllString(fmt.Sprintf("%d\n%s%s", answer.StatusCode, headers, body), "?hash")
		return string(body)
	}
	const v2, v3 = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf", "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"
	fetch("/", "application/json") // lists what is served
	fetch("/openapi/v2", "application/json")
	fetch("/openapi/v2", v2)
	fetch("/openapi/v3/apis/there.is/none", "application/json")
	var index handler3.OpenAPIV3Discovery
	fatal(t, json.Unmarshal([]byte(fetch("/openapi/v3", "application/json")), &index))
	for _, entry := range index.Paths {
		fetch(entry.ServerRelativeURL, "application/json")
		path := strings.Split(entry.ServerRelativeURL, "?")[0]
		fetch(path, v3)
		fetch(path+"?hash=other", "application/json")
		all["redirect of "+path] = fmt.Sprint(last.RequestURI() == entry.ServerRelativeURL)
	}
	return all
}
