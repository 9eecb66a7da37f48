package openapi

import (
	"runtime/debug"
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
	built := func(change func(*debug.BuildInfo)) *debug.BuildInfo {
		info := &debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Path: "example.com/main", Version: "v0.0.0-1"},
			Deps:     []*debug.Module{{Path: "example.com/a", Version: "v1.0.0", Sum: "h1:a"}},
			Settings: []debug.BuildSetting{{Key: "GOARCH", Value: "amd64"}, {Key: "vcs.revision", Value: "1"}, {Key: "vcs.modified", Value: "false"}}}
		change(info)
		return info
	}
	same := buildOf(built(func(*debug.BuildInfo) {}), true, "dev")
	for what, c := range map[string]struct {
		change        func(*debug.BuildInfo)
		ok            bool
		like, certain bool // like the first one; the same each time
		name          string
	}{
		"again":                 {func(*debug.BuildInfo) {}, true, true, true, ""},
		"another processor":     {func(i *debug.BuildInfo) { i.Settings[0].Value = "arm64" }, true, true, true, ""},
		"another revision":      {func(i *debug.BuildInfo) { i.Settings[1].Value = "2" }, true, false, true, ""},
		"another dependency":    {func(i *debug.BuildInfo) { i.Deps[0].Version, i.Deps[0].Sum = "v1.0.1", "h1:b" }, true, false, true, ""},
		"a replaced dependency": {func(i *debug.BuildInfo) { i.Deps[0].Replace = &debug.Module{Path: "b", Version: "v1", Sum: "h1:b"} }, true, false, true, ""},
		"go install":            {func(i *debug.BuildInfo) { i.Settings, i.Main.Sum = nil, "h1:m" }, true, false, true, ""},
		"a modified tree":       {func(i *debug.BuildInfo) { i.Settings[2].Value = "true" }, true, false, false, ""},
		"no version control":    {func(i *debug.BuildInfo) { i.Settings = nil }, true, false, false, ""},
		"a local dependency":    {func(i *debug.BuildInfo) { i.Deps[0].Replace = &debug.Module{Path: "../b"} }, true, false, false, ""},
		"a module of the tree":  {func(i *debug.BuildInfo) { i.Deps[0].Replace = &debug.Module{Path: "./b"} }, true, false, true, ""},
		"nothing is known":      {func(*debug.BuildInfo) {}, false, false, false, ""},
		"scripts/build":         {func(i *debug.BuildInfo) { i.Settings = nil }, true, false, true, "dev-0a1b2c3"},
		"another commit":        {func(i *debug.BuildInfo) { i.Settings = nil }, true, false, true, "dev-1a1b2c3"},
		"a modified one":        {func(i *debug.BuildInfo) { i.Settings = nil }, true, false, false, "dev-0a1b2c3-dirty"},
	} {
		if c.name == "" {
			c.name = "dev"
		}
		got, again := buildOf(built(c.change), c.ok, c.name), buildOf(built(c.change), c.ok, c.name)
		if (got == same) != c.like || (got == again) != c.certain {
			t.Errorf("%s: like the first one %t, the same again %t; want %t, %t", what, got == same, got == again, c.like, c.certain)
		}
	}
}
