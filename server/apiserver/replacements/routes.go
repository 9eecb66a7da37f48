package replacements

import (
	"net/http"
	"strings"
	"sync"

	"github.com/emicklei/go-restful/v3"
)

// A routeMemory remembers which route upstream's router has chosen. That one
// compares the path with each of the hundreds of routes of its API version,
// and copies those that fit, half a kilobyte each: 3 % of the server's CPU time
// of an update, 5 of a get, and as much again of what the collector cleans up.
// It is asked once for all objects of a resource.
type routeMemory struct {
	upstream restful.RouteSelector

	mu    sync.RWMutex
	known map[routeKey]routeChoice
}

// A routeKey is everything in a request that the choice depends on, in whatever
// place a name is: the path around names, and three headers.
type routeKey struct {
	base        string // /api/VERSION or /apis/GROUP/VERSION
	scoped      bool   // then comes /namespaces/NAME/
	resource    string
	named       bool
	subordinate string // after the name, empty if there is nothing

	method, accept, contentType string
}

type routeChoice struct {
	service *restful.WebService
	route   *restful.Route
}

// Bounds of what clients can make us remember.
const (
	mostRoutes  = 4096
	mostHeaders = 512 // bytes
)

// RememberRoutes gives a container, whose services are complete, the memory. It returns
// both routers, for the test that compares them.
func RememberRoutes(container *restful.Container) (ours, upstreams restful.RouteSelector) {
	upstreams = restful.CurlyRouter{} // what k8s.io/apiserver pkg/server/handler.go sets
	ours = rememberRoutes(upstreams)
	container.Router(ours)
	return ours, upstreams
}

// rememberRoutes puts the memory before the router of one container.
func rememberRoutes(upstream restful.RouteSelector) restful.RouteSelector {
	return &routeMemory{upstream: upstream, known: map[routeKey]routeChoice{}}
}

// SelectRoute implements restful.RouteSelector.
func (m *routeMemory) SelectRoute(services []*restful.WebService, r *http.Request) (*restful.WebService, *restful.Route, error) {
	key, ok := routeKeyOf(r)
	if !ok {
		return m.upstream.SelectRoute(services, r)
	}
	m.mu.RLock()
	choice, ok := m.known[key]
	m.mu.RUnlock()
	if ok {
		return choice.service, choice.route, nil
	}
	service, route, err := m.upstream.SelectRoute(services, r)
	if err == nil && key.decides(services, service) {
		m.mu.Lock()
		if len(m.known) >= mostRoutes {
			clear(m.known)
		}
		m.known[key.clone()] = routeChoice{service, route}
		m.mu.Unlock()
	}
	return service, route, err
}

// routeKeyOf reads the key; it is not ok where the path has another form.
func routeKeyOf(r *http.Request) (key routeKey, ok bool) {
	path := r.URL.Path
	var tokens [8]string
	n := 0
	for rest, more := strings.CutPrefix(path, "/"); more; n++ {
		if n == len(tokens) {
			return key, false
		}
		if tokens[n], rest, more = strings.Cut(rest, "/"); tokens[n] == "" {
			return key, false
		}
	}
	base := 0
	switch tokens[0] {
	case "api":
		base = 2
	case "apis":
		base = 3
	}
	if base == 0 || n <= base {
		return key, false
	}
	for _, token := range tokens[:base] {
		key.base = path[:len(key.base)+1+len(token)]
	}
	rest := tokens[base:n]
	if len(rest) > 2 && rest[0] == "namespaces" {
		key.scoped, rest = true, rest[2:]
	}
	switch len(rest) {
	case 3:
		key.subordinate = rest[2]
		fallthrough
	case 2:
		key.named = true
		fallthrough
	case 1:
		key.resource = rest[0]
	default:
		return key, false
	}
	key.method, key.accept, key.contentType = r.Method, r.Header.Get("Accept"), r.Header.Get("Content-Type")
	return key, len(key.accept)+len(key.contentType) <= mostHeaders
}

// decides tells whether every request with this key gets the same route of
// service: no route that may fit has anything but a parameter where a name is.
func (k routeKey) decides(services []*restful.WebService, service *restful.WebService) bool {
	path, isName := k.template()
	conflicts := func(tokens []string) bool {
		conflict := false
		for i, token := range tokens[:min(len(tokens), len(path))] {
			plain := strings.HasPrefix(token, "{") && !strings.Contains(token, ":")
			switch {
			case isName[i]:
				conflict = conflict || !plain
			case !strings.HasPrefix(token, "{") && token != path[i]:
				return false // it doesn't fit, whatever the names
			}
		}
		return conflict
	}
	for _, s := range services {
		if conflicts(tokensOf(s.RootPath())) {
			return false
		}
	}
	for _, route := range service.Routes() {
		if len(route.If) > 0 || conflicts(tokensOf(route.Path)) {
			return false
		}
	}
	return true
}

// template is the path by tokens, empty where a name is.
func (k routeKey) template() (path []string, isName map[int]bool) {
	path, isName = tokensOf(k.base), map[int]bool{}
	name := func() { isName[len(path)] = true; path = append(path, "") }
	if k.scoped {
		path = append(path, "namespaces")
		name()
	}
	path = append(path, k.resource)
	if k.named {
		name()
	}
	if k.subordinate != "" {
		path = append(path, k.subordinate)
	}
	return path, isName
}

func tokensOf(path string) []string { return strings.Split(strings.Trim(path, "/"), "/") }

// clone lets go of the request's strings.
func (k routeKey) clone() routeKey {
	for _, s := range []*string{&k.base, &k.resource, &k.subordinate, &k.method, &k.accept, &k.contentType} {
		*s = strings.Clone(*s)
	}
	return k
}
