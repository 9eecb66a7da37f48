package server_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/emicklei/go-restful/v3"

	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/deviations"
)

// Every route leads where upstream's router leads, for any names, and also when a route is
// requested for the first time.
func TestRoutesAreUpstreams(t *testing.T) {
	compares(t, deviations.Routes)
	var ours, upstreams restful.RouteSelector
	var services []*restful.WebService
	start(t, server.WithRouters(func(o, u restful.RouteSelector, s []*restful.WebService) { ours, upstreams, services = o, u, s }))
	chosen := func(router restful.RouteSelector, method, path, accept, contentType string) string {
		r := httptest.NewRequest(method, path, nil)
		r.Header.Set("Accept", accept)
		r.Header.Set("Content-Type", contentType)
		service, route, err := router.SelectRoute(services, r)
		if err != nil {
			return err.Error()
		}
		return service.RootPath() + " " + route.Method + " " + route.Path + " " + route.Operation
	}
	asked := 0
	for _, service := range services {
		for _, route := range service.Routes() {
			// A name may be the same as that of a resource, a subresource or a verb.
			for _, name := range []string{"a", "b", "pods", "status", "watch"} {
				path := strings.NewReplacer("{namespace}", name, "{name}", name, "{path:*}", name+"/"+name, "{path}", name, "{logpath:*}", name).Replace(route.Path)
				if strings.Contains(path, "{") {
					t.Fatalf("%s: a parameter that this test does not know", route.Path)
				}
				for _, method := range []string{route.Method, "OPTIONS"} {
					for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf,application/json", "text/html"} {
						for _, contentType := range []string{"", "application/json", "application/apply-patch+yaml"} {
							want := chosen(upstreams, method, path, accept, contentType)
							if got := chosen(ours, method, path, accept, contentType); got != want {
								t.Fatalf("%s %s (Accept %q, Content-Type %q): got %s, want %s", method, path, accept, contentType, got, want)
							}
							asked++
						}
					}
				}
			}
		}
	}
	if asked < 20_000 {
		t.Errorf("compared %d requests: are these all routes of kube-apiserver?", asked)
	}
}
