package openapi

import (
	"testing"

	restful "github.com/emicklei/go-restful/v3"
	"k8s.io/component-base/featuregate"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Two servers have the same hash exactly if they build a document from the same things.
func TestHash(t *testing.T) {
	type server struct {
		build  string
		gates  map[featuregate.Feature]bool
		config *openapicommon.OpenAPIV3Config
		path   string
		route  func(*restful.WebService) *restful.RouteBuilder
	}
	hashOf := func(change func(*server)) string {
		t.Helper()
		s := &server{
			build: "1", gates: map[featuregate.Feature]bool{"A": true, "B": false}, path: "/apis/apps/v1",
			config: &openapicommon.OpenAPIV3Config{Info: &spec.Info{InfoProps: spec.InfoProps{Title: "Kubernetes", Version: "v1.37"}},
				SecuritySchemes: spec3.SecuritySchemes{"BearerToken": &spec3.SecurityScheme{}}},
			route: func(w *restful.WebService) *restful.RouteBuilder {
				return w.GET("/deployments").Operation("listDeployments").Produces("application/json").Writes(0)
			},
		}
		change(s)
		service := new(restful.WebService).Path(s.path)
		service.Route(s.route(service).To(func(*restful.Request, *restful.Response) {}))
		source, err := source(s.build, s.gates, s.config)
		if err != nil {
			t.Fatal(err)
		}
		return hash(source, service)
	}
	seen := map[string]string{hashOf(func(*server) {}): "nothing"}
	if again := hashOf(func(*server) {}); seen[again] == "" {
		t.Error("the hash of an equal server differs")
	}
	for what, change := range map[string]func(*server){
		"the build":             func(s *server) { s.build = "2" },
		"a gate":                func(s *server) { s.gates["B"] = true },
		"a gate more":           func(s *server) { s.gates["C"] = false },
		"the emulated version":  func(s *server) { s.config.Info.Version = "v1.36" },
		"no authentication":     func(s *server) { s.config.SecuritySchemes = nil },
		"another group version": func(s *server) { s.path = "/apis/apps/v1beta1" },
		"another route": func(s *server) {
			s.route = func(w *restful.WebService) *restful.RouteBuilder {
				return w.DELETE("/deployments").Operation("listDeployments").Produces("application/json").Writes(0)
			}
		},
		"another type": func(s *server) {
			s.route = func(w *restful.WebService) *restful.RouteBuilder {
				return w.GET("/deployments").Operation("listDeployments").Produces("application/json").Writes("")
			}
		},
		"another content type": func(s *server) {
			s.route = func(w *restful.WebService) *restful.RouteBuilder {
				return w.GET("/deployments").Operation("listDeployments").Produces("application/cbor").Writes(0)
			}
		},
	} {
		h := hashOf(change)
		if same, ok := seen[h]; ok {
			t.Errorf("%s: the same hash as with %s", what, same)
		}
		seen[h] = what
	}
}

// Only a program whose code is known has the identity of another one.
func TestBuildOf(t *testing.T) {
	for name, certain := range map[string]bool{"": true, "dev-0a1b2c3": true, "dev-0a1b2c3-dirty": false, "dev": false} {
		first, again := buildOf(name), buildOf(name)
		if (first == again) != certain {
			t.Errorf("%q: want the same identity each time: %t", name, certain)
		}
	}
	if buildOf("") == buildOf("dev-0a1b2c3") {
		t.Error("two programs have the same identity")
	}
}
