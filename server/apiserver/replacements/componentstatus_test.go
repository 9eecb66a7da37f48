package replacements

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/mux"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kubernetes/pkg/probe"
	"k8s.io/kubernetes/pkg/registry/core/componentstatus"
)

// A part in this process answers what upstream's probe of a process with the same health does.
func TestComponentsAreAskedAsUpstreams(t *testing.T) {
	for name, health := range map[string]error{"healthy": nil, "not healthy": errors.New("the caches are not filled")} {
		part := Component(func(*http.Request) error { return health })
		process := mux.NewPathRecorderMux(name)
		healthz.InstallHandler(process, healthz.NamedCheck("part", part))
		server := httptest.NewTLSServer(process)
		defer server.Close()
		address, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		port, err := strconv.Atoi(address.Port())
		if err != nil {
			t.Fatal(err)
		}
		want, wantText, wantErr := processOf(port).DoServerCheck()
		got, text, err := part.DoServerCheck()
		if got != want || wantErr != nil || err != nil {
			t.Errorf("%s: %s, %v, want %s, %v", name, got, err, want, wantErr)
		}
		if health == nil && text != wantText || health != nil && !strings.Contains(text, health.Error()) {
			t.Errorf("%s: %q, upstream says %q", name, text, wantText)
		}
	}
	if result, text, err := processOf(1).DoServerCheck(); result == probe.Success {
		t.Errorf("a process that is not there: %s, %q, %v", result, text, err)
	}
}

// A route of upstream's that is new, or gone, is an error of the start.
func TestRoutesOfComponentsAreUpstreams(t *testing.T) {
	path := func(paths ...string) *restful.Container {
		service := new(restful.WebService).Path("/api/v1")
		for _, path := range paths {
			service.Route(service.GET(path).To(func(*restful.Request, *restful.Response) {}))
		}
		return restful.NewContainer().Add(service)
	}
	factory := &serverstorage.DefaultStorageFactory{}
	for name, c := range map[string]struct {
		container *restful.Container
		want      string
	}{
		"upstream's": {path("componentstatuses", "componentstatuses/{name}", "componentstatusesother"), ""},
		"a new one":  {path("componentstatuses", "componentstatuses/{name}", "componentstatuses/{name}/status"), "new route"},
		"one less":   {path("componentstatuses"), "lost routes"},
	} {
		err := AskComponents(c.container, factory, map[string]Component{})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

var _ componentstatus.Server = Component(nil)
