package replacements

import (
	"net/http"
	"strings"
	"sync"

	"github.com/emicklei/go-restful/v3"
)

// A routeMemory remembers which route upstream's router has chosen, and asks it once for all
// objects of a resource.
//
// Upstream's router compares the path with each of the hundreds of routes of its API version,
// and copies those that match, half a kilobyte each. That is 3 % of the server's CPU time for
// an update and 5 % for a get, and again as much for garbage collection.
type routeMemory struct {
	upstream restful.RouteSelector

	mu    sync.RWMutex
	known map[routeKey]routeChoice
}

// A routeKey is everything in a request that the choice depends on, for any names of namespace
// and object: the path around the names, and three headers.
type routeKey struct {
	base        string // /api/VERSION or /apis/GROUP/VERSION
	scoped      bool   // whether /namespaces/NAME/ follows
	resource    string
	named       bool
	subordinate string // what follows the name; may be empty

	method, accept, contentType string
}

type routeChoice struct {
	service *restful.WebService
	route   *restful.Route
}

// These limit how much memory clients can make the server use.
const (
	mostRoutes  = 4096
	mostHeaders = 512 // bytes
)

// RememberRoutes adds the memory to a container whose services are complete. It returns both
// routers, for the test that compares them.
func RememberRoutes(container *restful.Container) (ours, upstreams restful.RouteSelector) {
	upstreams = restful.CurlyRouter{} // as k8s.io/apiserver pkg/server/handler.go sets it
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

// routeKeyOf returns the key of a request. ok is false if the path has another form.
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

// decides reports whether every request with this key gets the same route of service. This is
// so if each route that may match has only parameters in the places of names.
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
				return false // it matches no request with this key
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

// template returns the tokens of the path, with empty ones in the places of names.
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

// clone returns a copy of the key that does not keep the request's strings in memory.
func (k routeKey) clone() routeKey {
	for _, s := range []*string{&k.base, &k.resource, &k.subordinate, &k.method, &k.accept, &k.contentType} {
		*s = strings.Clone(*s)
	}
	return k
}
