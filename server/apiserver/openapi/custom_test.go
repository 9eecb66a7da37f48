package openapi

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

const boatsPath = "apis/karve.test/v1"

// boats is an established definition.
func boats(generation int64, resourceVersion, description string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "boats.karve.test", UID: types.UID("boats"), Generation: generation, ResourceVersion: resourceVersion},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "karve.test", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "boats", Singular: "boat", Kind: "Boat", ListKind: "BoatList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Description: description}}}},
		},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{
			{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}},
	}
}

func newCustom(all *[]*apiextensionsv1.CustomResourceDefinition) *custom {
	return &custom{own: handlerOf(handler3.NewOpenAPIService()), versions: map[string]*customVersion{},
		list: func() ([]*apiextensionsv1.CustomResourceDefinition, error) { return *all, nil }}
}

// quickly returns the entry in the index of the server's own plugin.
func (c *custom) quickly(t *testing.T) string {
	t.Helper()
	index := map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}
	if err := c.overlay(index); err != nil {
		t.Fatal(err)
	}
	return index[boatsPath].ServerRelativeURL
}

func (c *custom) get(url string) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	c.serveV3(answer, httptest.NewRequest(http.MethodGet, url, nil))
	return answer
}

// The plugin that requests the index every five seconds learns of every change, and no document is
// built for it.
func TestOwnIndexBuildsNothing(t *testing.T) {
	all := []*apiextensionsv1.CustomResourceDefinition{boats(1, "1", "a boat")}
	c := newCustom(&all)
	first := c.quickly(t)
	if first == "" || c.versions[boatsPath].built {
		t.Fatalf("got %q, built: %v, want an entry without a document", first, c.versions[boatsPath].built)
	}
	all[0] = boats(1, "2", "a boat") // as when its status changes
	if again := c.quickly(t); again != first {
		t.Errorf("after a change of the status: got %s, want %s as before", again, first)
	}
	all[0] = boats(2, "3", "a rowing boat")
	second := c.quickly(t)
	if second == "" || second == first {
		t.Errorf("after a change of the spec: got %q, want another one", second)
	}

	moved := c.get(second)
	if moved.Code != http.StatusMovedPermanently {
		t.Fatalf("a request with a hash of the definitions: got %d, want a redirection", moved.Code)
	}
	index, err := c.paths()
	if err != nil {
		t.Fatal(err)
	}
	if at, want := moved.Header().Get("Location"), index.Paths[boatsPath].ServerRelativeURL; at != want {
		t.Errorf("redirected to %s, the index has %s", at, want)
	}
	if got := c.get(moved.Header().Get("Location")); got.Code != http.StatusOK || !bytes.Contains(got.Body.Bytes(), []byte("a rowing boat")) {
		t.Errorf("got %d %.200s, want the changed document", got.Code, got.Body)
	}
	if known := c.quickly(t); known != index.Paths[boatsPath].ServerRelativeURL {
		t.Errorf("once the document was built: got %s, want its own hash", known)
	}
	all = nil
	if gone := c.quickly(t); gone != "" {
		t.Errorf("without definitions: got %s, want no entry", gone)
	}
}

// An index keeps no document, and a document is not kept with those of definitions that have changed.
func TestIndexKeepsNoDocuments(t *testing.T) {
	all := []*apiextensionsv1.CustomResourceDefinition{boats(1, "1", "a boat")}
	c := newCustom(&all)
	if _, err := c.paths(); err != nil {
		t.Fatal(err)
	}
	if _, there := c.versions[boatsPath].document.peek(); there {
		t.Error("the index keeps a document")
	}
	_ = c.get(v3Prefix + boatsPath)
	if _, there := c.versions[boatsPath].document.peek(); !there {
		t.Error("a requested document is not kept")
	}
	all[0] = boats(2, "2", "a rowing boat")
	if got := c.get(v3Prefix + boatsPath); !bytes.Contains(got.Body.Bytes(), []byte("a rowing boat")) {
		t.Errorf("got %.200s, want the changed document", got.Body)
	}
}

// One definition that contradicts others does not take their documents away.
func TestContradictionsAreLeftOut(t *testing.T) {
	described := func(name, as string) *spec3.OpenAPI {
		return &spec3.OpenAPI{Paths: &spec3.Paths{}, Components: &spec3.Components{
			Schemas: map[string]*spec.Schema{name: {SchemaProps: spec.SchemaProps{Description: as}}},
		}}
	}
	merged, err := mergeV3([]*spec3.OpenAPI{described("boat", "first"), described("boat", "second"), described("raft", "third")})
	if err != nil {
		t.Fatal(err)
	}
	if got := merged.Components.Schemas; len(got) != 2 || got["boat"].Description != "first" || got["raft"] == nil {
		t.Errorf("got %v, want the first boat and the raft", got)
	}
	if _, err := mergeV3(nil); !errors.Is(err, errNothing) {
		t.Errorf("nothing to merge: got %v, want %v", err, errNothing)
	}
}
