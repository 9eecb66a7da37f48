package openapi

import (
	"bytes"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	restful "github.com/emicklei/go-restful/v3"
	extensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	utilopenapi "k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/component-base/featuregate"
	openapibuilder "k8s.io/kube-openapi/pkg/builder"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/karve-k8s/karve/internal/version"
)

// These are the paths at which upstream serves OpenAPI. Below v3Prefix, there is one document
// per group version, such as /openapi/v3/apis/apps/v1.
const (
	prefix   = "/openapi/"
	v2Path   = prefix + "v2"
	v3Path   = prefix + "v3"
	v3Prefix = v3Path + "/"
)

// Documents are the OpenAPI documents of the API groups that are compiled in. Upstream builds all
// of them before it serves, and keeps them: that is a third of a start's CPU time and a third
// of an idle server's heap. Here, upstream's builders build each one when a client requests
// it, and it expires when clients stop requesting it.
type Documents struct {
	v2    *openapicommon.Config
	v3    *openapicommon.OpenAPIV3Config
	gates map[featuregate.Feature]bool
	build string

	// All group versions are built from the same type definitions, and upstream's builder
	// writes into them. So build one at a time, and serialise it before the next.
	building    sync.Mutex
	definitions expiring[*openapicommon.OpenAPIV3Config]
}

// NewDocuments returns the documents of servers with these configurations and feature gates.
func NewDocuments(v2 *openapicommon.Config, v3 *openapicommon.OpenAPIV3Config, gates map[featuregate.Feature]bool) *Documents {
	forgetBuilders(v2, v3)
	d := &Documents{v2: v2, v3: v3, gates: gates, build: buildOf(version.Build)}
	d.definitions.make = func() (*openapicommon.OpenAPIV3Config, error) { return withDefinitions(v3), nil }
	return d
}

// Serve serves the documents of a server whose configuration has SkipOpenAPIInstallation. All API
// groups of the server must be installed already.
func (d *Documents) Serve(s *genericapiserver.GenericAPIServer) {
	services, paths := s.Handler.GoRestfulContainer.RegisteredWebServices(), s.Handler.NonGoRestfulMux
	v2 := expiring[http.Handler]{make: func() (http.Handler, error) { return buildV2(services, d.v2) }}
	paths.HandleFunc(v2Path, func(w http.ResponseWriter, r *http.Request) {
		document, err := v2.get()
		serveBuilt(document, err, w, r)
	})
	d.serveV3(services, paths)
}

// serveV3 serves the index and the documents of v3.
func (d *Documents) serveV3(services []*restful.WebService, paths *mux.PathRecorderMux) {
	byVersion := map[string]*restful.WebService{} // the last service of a name counts, as upstream
	for _, service := range services {
		byVersion[strings.TrimPrefix(service.RootPath(), "/")] = service
	}
	// Every server of the chain has this one, and the aggregator asks any of them. apiextensions-apiserver has built
	// it, with upstream's hash.
	delete(byVersion, "version")
	s := &servedV3{documents: map[string]*expiring[document]{}, absent: handler3.NewOpenAPIService()}
	for version, service := range byVersion {
		s.documents[version] = &expiring[document]{make: func() (document, error) { return d.buildV3(version, service) }}
	}
	s.index = sync.OnceValues(func() (index, error) { return d.newIndex(byVersion) })
	paths.HandleFunc(v3Path, s.serveIndex)
	paths.HandlePrefix(v3Prefix, s)
}

// servedV3 are the documents of one server.
type servedV3 struct {
	documents map[string]*expiring[document] // by group version: apis/apps/v1
	index     func() (index, error)
	absent    *handler3.OpenAPIService // what upstream answers for other group versions
}

// document serves the document of one group version.
type document struct {
	http.Handler
	url *url.URL // upstream's, with the hash of what has been built
}

// index lists all documents of v3 with their hashes. It does not change.
type index struct {
	handler3.OpenAPIV3Discovery
	body []byte
	etag string
	made time.Time
}

// ServeHTTP serves a document. A request with the hash of the index may keep it for ever, and one with
// another hash is sent to the document's URL, as upstream does. The entity tag is upstream's: a hash of
// the document.
func (s *servedV3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	version := strings.TrimPrefix(r.URL.Path, v3Prefix)
	documents, ok := s.documents[version]
	if !ok {
		s.absent.HandleGroupVersion(w, r)
		return
	}
	hash := r.URL.Query().Get("hash")
	if hash != "" {
		index, err := s.index()
		if err != nil {
			serveBuilt(nil, err, w, r)
			return
		}
		if current := index.Paths[version].ServerRelativeURL; current != documentURL(version, hash) {
			w.Header().Set("Vary", "Accept")
			http.Redirect(w, r, current, http.StatusMovedPermanently)
			return
		}
	}
	document, err := documents.get()
	if hash != "" && err == nil { // upstream compares it with that of what has been built
		r = r.WithContext(r.Context())
		r.URL = document.url
	}
	serveBuilt(document, err, w, r)
}

func (s *servedV3) serveIndex(w http.ResponseWriter, r *http.Request) {
	index, err := s.index()
	if err != nil {
		serveBuilt(nil, err, w, r)
		return
	}
	w.Header().Set("Etag", strconv.Quote(index.etag))
	w.Header().Set("Content-Type", "application/json")
	http.ServeContent(w, r, v3Path, index.made, bytes.NewReader(index.body))
}

// serveBuilt serves h, or err if h could not be built.
func serveBuilt(h http.Handler, err error, w http.ResponseWriter, r *http.Request) {
	if err != nil {
		http.Error(w, "build OpenAPI document: "+err.Error(), http.StatusInternalServerError)
		return
	}
	h.ServeHTTP(w, r)
}

// forgetBuilders sets the functions that each builder of documents would otherwise set itself.
// The builder's own functions refer to the builder. So all definitions, and the first document
// that it built, would stay in memory as long as the configuration.
func forgetBuilders(v2 *openapicommon.Config, v3 *openapicommon.OpenAPIV3Config) {
	//lint:ignore SA1019 upstream's configuration sets this one and not its successor
	v2.GetOperationIDAndTagsFromRoute = operationOf(v2.GetOperationIDAndTags)
	//lint:ignore SA1019 as above
	v3.GetOperationIDAndTagsFromRoute = operationOf(v3.GetOperationIDAndTags)
}

func operationOf(name func(*restful.Route) (string, []string, error)) func(openapicommon.Route) (string, []string, error) {
	return func(r openapicommon.Route) (string, []string, error) {
		adapter, ok := r.(*restfuladapter.RouteAdapter)
		if !ok {
			return "", nil, fmt.Errorf("not a go-restful route: %T", r)
		}
		return name(adapter.Route)
	}
}

// DescribeOwnTypes makes apiextensions-apiserver, which builds its v2 document during the
// start, look up its few types in the definitions of its own module instead of those of all of
// Kubernetes.
func DescribeOwnTypes(c *genericapiserver.Config) {
	own := *c.OpenAPIConfig
	own.GetDefinitions = utilopenapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(extensionsopenapi.GetOpenAPIDefinitions)
	c.OpenAPIConfig = &own
}

// buildV2 builds the one document of all API groups. It does what upstream's routes.OpenAPI
// does, but returns an error where that ends the process.
func buildV2(services []*restful.WebService, config *openapicommon.Config) (http.Handler, error) {
	swagger, err := openapibuilder.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(services), config)
	if err != nil {
		return nil, err
	}
	swagger.Definitions = handler.PruneDefaults(swagger.Definitions)
	paths := mux.NewPathRecorderMux("openapi-v2")
	handler.NewOpenAPIService(swagger).RegisterOpenAPIVersionedService(v2Path, paths)
	return paths, nil
}

// buildV3 builds the document of one group version.
func (d *Documents) buildV3(version string, service *restful.WebService) (document, error) {
	d.building.Lock()
	defer d.building.Unlock()
	config, _ := d.definitions.get() // never fails
	container := restful.NewContainer()
	container.Add(service)
	paths := mux.NewPathRecorderMux("openapi-v3")
	routes.OpenAPI{V3Config: config}.InstallV3(container, paths)
	built := readIndex(paths).Paths[version].ServerRelativeURL // serialises it
	if built == "" {
		return document{}, fmt.Errorf("%s: the server's log has the reason", version)
	}
	at, err := url.Parse(built)
	return document{paths, at}, err
}

// withDefinitions returns config with the definitions of all types.
func withDefinitions(config *openapicommon.OpenAPIV3Config) *openapicommon.OpenAPIV3Config {
	with := *config
	with.Definitions = DefinitionsV3(config.GetDefinitions, config.GetDefinitionName)
	return &with
}

// DefinitionsV3 returns the definitions of all types, as upstream's DefaultOpenAPIV3Config
// does.
func DefinitionsV3(all openapicommon.GetOpenAPIDefinitions, name func(string) (string, spec.Extensions)) map[string]openapicommon.OpenAPIDefinition {
	return all(func(of string) spec.Ref {
		defined, _ := name(of)
		return spec.MustCreateRef("#/components/schemas/" + openapicommon.EscapeJsonPointer(defined))
	})
}

// newIndex makes the index without the documents.
func (d *Documents) newIndex(services map[string]*restful.WebService) (index, error) {
	source, err := source(d.build, d.gates, d.v3)
	if err != nil {
		return index{}, err
	}
	all := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	for version, service := range services {
		all.Paths[version] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: documentURL(version, hash(source, service))}
	}
	body, err := json.Marshal(all)
	if err != nil {
		return index{}, err
	}
	return index{all, body, fmt.Sprintf("%X", sha512.Sum512(body)), time.Now()}, nil
}

// documentURL returns the URL of a document, in upstream's form.
func documentURL(version, hash string) string {
	return v3Prefix + version + "?" + url.Values{"hash": {hash}}.Encode()
}

// readIndex returns the index of the v3 documents that h serves.
func readIndex(h http.Handler) (discovery handler3.OpenAPIV3Discovery) {
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, v3Path, nil))
	// If upstream could not build a document, it has logged the reason.
	_ = json.Unmarshal(answer.Body.Bytes(), &discovery)
	return discovery
}
