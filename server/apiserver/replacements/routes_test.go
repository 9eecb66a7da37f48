package replacements

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/emicklei/go-restful/v3"
)

// services returns services of every form that Kubernetes has, and of some forms with which a
// memory of routes could go wrong.
func services() []*restful.WebService {
	const proto = "application/vnd.kubernetes.protobuf"
	service := func(root string, paths ...string) *restful.WebService {
		ws := new(restful.WebService).Path(root)
		for _, path := range paths {
			for _, method := range []string{"GET", "PUT", "DELETE"} {
				ws.Route(ws.Method(method).Path(path).Produces("application/json", proto).Consumes("*/*").To(func(*restful.Request, *restful.Response) {}))
			}
			ws.Route(ws.Method("PATCH").Path(path).Produces("application/json").Consumes("application/merge-patch+json").To(func(*restful.Request, *restful.Response) {}))
		}
		return ws
	}
	v1 := service("/api/v1", "/", "/pods", "/nodes", "/nodes/{name}", "/nodes/{name}/proxy", "/nodes/{name}/proxy/{path:*}",
		"/namespaces", "/namespaces/{name}", "/namespaces/{name}/status", "/namespaces/{name}/finalize",
		"/namespaces/{namespace}/pods", "/namespaces/{namespace}/pods/{name}", "/namespaces/{namespace}/pods/{name}/log",
		"/namespaces/{namespace}/pods/{name}/proxy/{path:*}", "/watch/pods", "/watch/nodes/{name}",
		"/watch/namespaces/{namespace}/pods", "/watch/namespaces/{namespace}/pods/{name}")
	odd := service("/apis/odd/v1", "/widgets/{name}", "/widgets/special", "/gadgets/{name:[a-c]}", "/gadgets/{name:[d-z]}",
		"/namespaces/special/things", "/namespaces/{namespace}/things", "/namespaces/{namespace}/things/{name}", "/any/{rest:*}")
	conditional := service("/apis/conditional/v1", "/other/{name}")
	conditional.Route(conditional.GET("/things/{name}").If(func(r *http.Request) bool {
		return strings.HasSuffix(r.URL.Path, "a")
	}).To(func(*restful.Request, *restful.Response) {}))
	return []*restful.WebService{v1, odd, conditional, service("/apis", "/"), service("/apis/odd", "/"), service("/apis/deep/v1/things/special", "/"), service("/apis/deep/v1", "/things/{name}")}
}

// chosen describes the route or the error of a router.
func chosen(router restful.RouteSelector, services []*restful.WebService, r *http.Request) string {
	service, route, err := router.SelectRoute(services, r)
	text := fmt.Sprint(err)
	if service != nil {
		text = service.RootPath() + ": " + text
	}
	if route != nil {
		text = fmt.Sprint(route.Method, route.Path, route.Consumes, route.Produces, text)
	}
	return text
}

// Clients cannot make the memory grow without bounds.
func TestRememberedRoutesAreBounded(t *testing.T) {
	all, ours := services(), rememberRoutes(restful.CurlyRouter{}).(*routeMemory)
	ask := func(accept string) int {
		r := httptest.NewRequest("GET", "/api/v1/pods", nil)
		r.Header.Set("Accept", accept)
		ours.SelectRoute(all, r)
		return len(ours.known)
	}
	for i := range mostRoutes + 10 {
		ask(fmt.Sprintf("application/json;n=%d", i))
	}
	before := len(ours.known)
	if got := ask("application/json;" + strings.Repeat("x", mostHeaders)); before > mostRoutes || got != before {
		t.Errorf("%d routes are remembered, and %d after a request with very long headers; want %d at most, and no more", before, got, mostRoutes)
	}
}
