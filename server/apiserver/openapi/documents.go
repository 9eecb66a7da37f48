package openapi

import (
	"bytes"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
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
	openapibuilder "k8s.io/kube-openapi/pkg/builder"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// These are the paths at which upstream serves OpenAPI. Below v3Prefix, there is one document
// per group version, such as /openapi/v3/apis/apps/v1.
const (
	prefix   = "/openapi/"
	v2Path   = prefix + "v2"
	v3Path   = prefix + "v3"
	v3Prefix = v3Path + "/"
)

// documents are the OpenAPI documents of kube-apiserver's own API groups. Upstream builds all
// of them before it serves, and keeps them: that is a third of a start's CPU time and a third
// of an idle server's heap. Here, upstream's builders build each one when a client requests
// it, and it expires when clients stop requesting it.
type documents struct {
	v2     expiring[http.Handler]
	v3     map[string]*expiring[http.Handler] // by group version: apis/apps/v1
	index  func() (index, error)
	absent *handler3.OpenAPIService // what upstream answers for other group versions
}

// errStopping is the error of an index that is not built because the server is stopping.
var errStopping = errors.New("the server is stopping")

// index lists all documents of v3 with their hashes. It is built once, because no document
// changes.
type index struct {
	body []byte
	etag string
	made time.Time
}

// ServeDocuments serves the documents of a server whose configuration has
// SkipOpenAPIInstallation, until the server is stopping. All API groups of the server must be
// installed already.
func ServeDocuments(s *genericapiserver.GenericAPIServer, v2 *openapicommon.Config, v3 *openapicommon.OpenAPIV3Config, stopping <-chan struct{}) {
	d := &documents{v3: map[string]*expiring[http.Handler]{}, absent: handler3.NewOpenAPIService()}
	services := s.Handler.GoRestfulContainer.RegisteredWebServices()
	d.v2.make = func() (http.Handler, error) { return buildV2(services, v2) }

	// All group versions are built from the same type definitions, and upstream's builder
	// writes into them. So build one at a time, and serialise it before the next.
	var building sync.Mutex
	definitions := expiring[*openapicommon.OpenAPIV3Config]{
		make: func() (*openapicommon.OpenAPIV3Config, error) { return withDefinitions(v3), nil },
	}
	byVersion := map[string]*restful.WebService{} // the last service of a name counts, as upstream
	for _, service := range services {
		byVersion[strings.TrimPrefix(service.RootPath(), "/")] = service
	}
	for version, service := range byVersion {
		d.v3[version] = &expiring[http.Handler]{make: func() (http.Handler, error) {
			building.Lock()
			defer building.Unlock()
			config, _ := definitions.get() // never fails
			document := buildV3(service, config)
			readIndex(document) // serialises it
			return document, nil
		}}
	}
	d.index = sync.OnceValues(func() (index, error) { return buildIndex(byVersion, v3, stopping) })

	paths := s.Handler.NonGoRestfulMux
	paths.HandleFunc(v2Path, d.serveV2)
	paths.HandleFunc(v3Path, d.serveIndex)
	paths.HandlePrefix(v3Prefix, http.HandlerFunc(d.serveV3))
}

func (d *documents) serveV2(w http.ResponseWriter, r *http.Request) {
	document, err := d.v2.get()
	serveBuilt(document, err, w, r)
}

func (d *documents) serveV3(w http.ResponseWriter, r *http.Request) {
	version, ok := d.v3[strings.TrimPrefix(r.URL.Path, v3Prefix)]
	if !ok {
		d.absent.HandleGroupVersion(w, r)
		return
	}
	document, err := version.get()
	serveBuilt(document, err, w, r)
}

func (d *documents) serveIndex(w http.ResponseWriter, r *http.Request) {
	index, err := d.index()
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
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

// ForgetBuilders sets the functions that each builder of documents would otherwise set itself.
// The builder's own functions refer to the builder. So all definitions, and the first document
// that it built, would stay in memory as long as the configuration.
func ForgetBuilders(v2 *openapicommon.Config, v3 *openapicommon.OpenAPIV3Config) {
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
func buildV3(service *restful.WebService, config *openapicommon.OpenAPIV3Config) http.Handler {
	container := restful.NewContainer()
	container.Add(service)
	paths := mux.NewPathRecorderMux("openapi-v3")
	routes.OpenAPI{V3Config: config}.InstallV3(container, paths)
	return paths
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

// buildIndex builds every document to compute its hash, and keeps none. It builds one at a
// time, because it mostly runs soon after a start, when users' requests are more important.
func buildIndex(services map[string]*restful.WebService, config *openapicommon.OpenAPIV3Config, stopping <-chan struct{}) (index, error) {
	all := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	config = withDefinitions(config)
	for _, service := range services {
		select {
		case <-stopping:
			return index{}, errStopping
		default:
		}
		maps.Copy(all.Paths, readIndex(buildV3(service, config)).Paths)
	}
	body, err := json.Marshal(all)
	if err != nil {
		return index{}, err
	}
	return index{body, fmt.Sprintf("%X", sha512.Sum512(body)), time.Now()}, nil
}

// readIndex returns the index of the v3 documents that h serves.
func readIndex(h http.Handler) (discovery handler3.OpenAPIV3Discovery) {
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, v3Path, nil))
	// If upstream could not build a document, it has logged the reason.
	_ = json.Unmarshal(answer.Body.Bytes(), &discovery)
	return discovery
}
