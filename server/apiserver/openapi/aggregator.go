package openapi

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"sync"
	"unsafe"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorserver "k8s.io/kube-aggregator/pkg/apiserver"
	openapicontroller "k8s.io/kube-aggregator/pkg/controllers/openapi"
	openapiaggregator "k8s.io/kube-aggregator/pkg/controllers/openapi/aggregator"
	openapiv3controller "k8s.io/kube-aggregator/pkg/controllers/openapiv3"
	openapiv3aggregator "k8s.io/kube-aggregator/pkg/controllers/openapiv3/aggregator"
	openapicommon "k8s.io/kube-openapi/pkg/common"
)

// Aggregated is the aggregator's OpenAPI. Upstream's aggregation merges the documents of the
// servers in this process and those of APIServices.
//
// Upstream starts the aggregation while it prepares to run, which builds all documents. Then
// it polls the servers in this process once a second. Here, the aggregation starts with the
// first request or APIService, and reads the servers' documents when a request needs them.
type Aggregated struct {
	v2 *aggregatedV2
	v3 *aggregatedV3
}

// Aggregate replaces the aggregator's own OpenAPI. Call Serve when the aggregator has been
// prepared to run.
func Aggregate(s *aggregatorserver.APIAggregator, documents *Documents) (*Aggregated, error) {
	a := &Aggregated{newAggregatedV2(s.GenericAPIServer, documents.v2), newAggregatedV3(s.GenericAPIServer, documents)}
	// Upstream has no setters. Without its configuration, the aggregator builds nothing, but
	// its controllers still report the APIServices.
	controller := openapicontroller.NewAggregationController(&a.v2.downloader, a.v2)
	controllerV3 := openapiv3controller.NewAggregationController(a.v3)
	if err := errors.Join(
		setUnexported(s, "openAPIConfig", (*openapicommon.Config)(nil)),
		setUnexported(s, "openAPIV3Config", (*openapicommon.OpenAPIV3Config)(nil)),
		setUnexported(s, "openAPIAggregationController", controller),
		setUnexported(s, "openAPIV3AggregationController", controllerV3),
	); err != nil {
		return nil, err
	}
	for name, run := range map[string]func(<-chan struct{}){
		"apiservice-openapi-controller":   controller.Run,
		"apiservice-openapiv3-controller": controllerV3.Run,
	} {
		err := s.GenericAPIServer.AddPostStartHook(name, func(c genericapiserver.PostStartHookContext) error {
			go run(c.Done())
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return a, nil
}

// setUnexported sets an unexported field of the aggregator. If upstream renames the field or
// changes its type, it returns an error, and no server starts.
func setUnexported[T any](s *aggregatorserver.APIAggregator, field string, value T) error {
	f := reflect.ValueOf(s).Elem().FieldByName(field)
	if want := reflect.TypeFor[T](); !f.IsValid() || f.Type() != want {
		return fmt.Errorf("kube-aggregator has no field %s of type %v", field, want)
	}
	*(*T)(unsafe.Pointer(f.UnsafeAddr())) = value
	return nil
}

// Serve serves the merged documents.
func (a *Aggregated) Serve(paths *mux.PathRecorderMux) {
	paths.HandleFunc(v2Path, func(w http.ResponseWriter, r *http.Request) {
		running, err := a.v2.running.get()
		serveBuilt(running.paths, err, w, r)
	})
	serveV3 := func(w http.ResponseWriter, r *http.Request) {
		current, err := a.v3.current()
		serveBuilt(current, err, w, r)
	}
	paths.HandleFunc(v3Path, serveV3)
	paths.HandlePrefix(v3Prefix, http.HandlerFunc(serveV3))
}

// aggregatedV2 merges /openapi/v2. Upstream's aggregator keeps four copies of every server's
// document, so it expires like the documents themselves. What it has learned from APIServices
// is kept.
type aggregatedV2 struct {
	downloader openapiaggregator.Downloader
	running    expiring[runningV2]
	mu         sync.Mutex
	services   map[string]*remembered
}

type runningV2 struct {
	openapiaggregator.SpecAggregator
	paths *mux.PathRecorderMux
}

func newAggregatedV2(s *genericapiserver.GenericAPIServer, config *openapicommon.Config) *aggregatedV2 {
	a := &aggregatedV2{downloader: openapiaggregator.NewDownloader(), services: map[string]*remembered{}}
	a.running.make = func() (runningV2, error) {
		paths := mux.NewPathRecorderMux("aggregated-openapi-v2")
		specs, err := openapiaggregator.BuildAndRegisterAggregator(
			&a.downloader, s.NextDelegate(), s.Handler.GoRestfulContainer.RegisteredWebServices(), config, paths)
		if err != nil {
			return runningV2{}, err
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		for name, service := range a.services {
			if err := specs.AddUpdateAPIService(service.apiService, service); err != nil {
				return runningV2{}, err
			}
			_ = specs.UpdateAPIServiceSpec(name) // fails if the APIService has never answered
		}
		return runningV2{specs, paths}, nil
	}
	return a
}

// AddUpdateAPIService implements openapiaggregator.SpecAggregator.
func (a *aggregatedV2) AddUpdateAPIService(apiService *apiregistration.APIService, handler http.Handler) error {
	if apiService.Spec.Service == nil {
		return nil
	}
	a.mu.Lock()
	service, known := a.services[apiService.Name]
	if !known {
		service = &remembered{}
		a.services[apiService.Name] = service
	}
	service.set(apiService, handler)
	a.mu.Unlock()
	if running, ok := a.running.peek(); ok {
		return running.AddUpdateAPIService(apiService, service)
	}
	return nil
}

// UpdateAPIServiceSpec implements openapiaggregator.SpecAggregator.
func (a *aggregatedV2) UpdateAPIServiceSpec(name string) error {
	a.mu.Lock()
	service, known := a.services[name]
	a.mu.Unlock()
	if !known {
		return openapiaggregator.ErrAPIServiceNotFound
	}
	changed, err := service.refresh(&a.downloader)
	if err != nil || !changed {
		return err
	}
	if running, ok := a.running.peek(); ok {
		return running.UpdateAPIServiceSpec(name)
	}
	return nil
}

// RemoveAPIService implements openapiaggregator.SpecAggregator.
func (a *aggregatedV2) RemoveAPIService(name string) {
	a.mu.Lock()
	delete(a.services, name)
	a.mu.Unlock()
	if running, ok := a.running.peek(); ok {
		running.RemoveAPIService(name)
	}
}

// remembered is the last /openapi/v2 that an APIService has served. It keeps the document
// while the APIService is unavailable for a short time.
type remembered struct {
	mu         sync.Mutex
	apiService *apiregistration.APIService
	remote     http.Handler
	etag       string
	document   *httptest.ResponseRecorder // nil until it has answered
}

func (m *remembered) set(apiService *apiregistration.APIService, remote http.Handler) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.apiService, m.remote = apiService, remote
}

// refresh requests the document of the APIService, and keeps it if it is valid.
func (m *remembered) refresh(downloader *openapiaggregator.Downloader) (changed bool, err error) {
	m.mu.Lock()
	remote, etag := m.remote, m.etag
	m.mu.Unlock()
	var answer *httptest.ResponseRecorder
	document, etag, status, err := downloader.Download(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer = httptest.NewRecorder()
		remote.ServeHTTP(answer, r)
		copyAnswer(w, answer)
	}), etag)
	switch {
	case err != nil:
		return false, err
	case status == http.StatusNotFound:
		return false, fmt.Errorf("the APIService serves no %s", v2Path)
	case document == nil: // unchanged
		return false, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.etag, m.document = etag, answer
	return true, nil
}

// ServeHTTP serves the last document of the APIService.
func (m *remembered) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	document := m.document
	m.mu.Unlock()
	if document == nil {
		http.Error(w, "the APIService has not served its OpenAPI document yet", http.StatusServiceUnavailable)
		return
	}
	copyAnswer(w, document)
}

func copyAnswer(w http.ResponseWriter, answer *httptest.ResponseRecorder) {
	for name, values := range answer.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes()) // into memory
}

// aggregatedV3 merges the index of /openapi/v3, and proxies requests for documents to their
// servers. Upstream's aggregator keeps only the index, so it is not stopped after it has
// started.
type aggregatedV3 struct {
	start    func() (openapiv3aggregator.SpecProxier, error)
	paths    *mux.PathRecorderMux
	starting sync.Mutex
	local    []string // upstream's names of the servers in this process

	mu       sync.Mutex                                       // hold it briefly: updates of APIServices wait for it
	services map[string]func(openapiv3aggregator.SpecProxier) // added before the start
	running  openapiv3aggregator.SpecProxier                  // nil before the start
}

// aggregatorsTypes is upstream's name for the documents of the aggregator's own types.
const aggregatorsTypes = "k8s_internal_local_kube_aggregator_types"

func newAggregatedV3(s *genericapiserver.GenericAPIServer, documents *Documents) *aggregatedV3 {
	a := &aggregatedV3{
		paths:    mux.NewPathRecorderMux("aggregated-openapi-v3"),
		services: map[string]func(openapiv3aggregator.SpecProxier){},
	}
	a.start = func() (openapiv3aggregator.SpecProxier, error) {
		// Without a configuration, upstream does not build the aggregator's own documents.
		running, err := openapiv3aggregator.BuildAndRegisterAggregator(openapiv3aggregator.NewDownloader(), s.NextDelegate(), nil, nil, a.paths)
		if err != nil {
			return nil, err
		}
		own := mux.NewPathRecorderMux(aggregatorsTypes)
		documents.serveV3(s.Handler.GoRestfulContainer.RegisteredWebServices(), own)
		service := &apiregistration.APIService{}
		service.Name = aggregatorsTypes
		running.AddUpdateAPIService(own, service)
		return running, running.UpdateAPIServiceSpec(aggregatorsTypes)
	}
	return a
}

// started starts upstream's aggregator, once, and returns it.
func (a *aggregatedV3) started() (openapiv3aggregator.SpecProxier, error) {
	a.starting.Lock()
	defer a.starting.Unlock()
	if a.running != nil { // only written below
		return a.running, nil
	}
	running, err := a.start()
	if err != nil {
		return nil, err
	}
	for _, name := range running.GetAPIServiceNames() {
		if openapiv3aggregator.IsLocalAPIService(name) {
			a.local = append(a.local, name)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, add := range a.services {
		add(running)
	}
	a.services, a.running = nil, running
	return running, nil
}

// current returns the aggregator's handler after an update from the servers in this process,
// because a CustomResourceDefinition may have changed.
func (a *aggregatedV3) current() (http.Handler, error) {
	running, err := a.started()
	if err != nil {
		return nil, err
	}
	for _, name := range a.local {
		if err := running.UpdateAPIServiceSpec(name); err != nil {
			return nil, err
		}
	}
	return a.paths, nil
}

// AddUpdateAPIService implements openapiv3aggregator.SpecProxier.
func (a *aggregatedV3) AddUpdateAPIService(handler http.Handler, apiService *apiregistration.APIService) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running == nil {
		a.services[apiService.Name] = func(running openapiv3aggregator.SpecProxier) { running.AddUpdateAPIService(handler, apiService) }
		return
	}
	a.running.AddUpdateAPIService(handler, apiService)
}

// UpdateAPIServiceSpec implements openapiv3aggregator.SpecProxier.
func (a *aggregatedV3) UpdateAPIServiceSpec(name string) error {
	running, err := a.started()
	if err != nil {
		return err
	}
	return running.UpdateAPIServiceSpec(name)
}

// RemoveAPIServiceSpec implements openapiv3aggregator.SpecProxier.
func (a *aggregatedV3) RemoveAPIServiceSpec(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.services, name)
	if a.running != nil {
		a.running.RemoveAPIServiceSpec(name)
	}
}

// GetAPIServiceNames implements openapiv3aggregator.SpecProxier. Upstream's controller calls
// it to learn which servers of this process to poll. It polls none, because current updates
// them.
func (a *aggregatedV3) GetAPIServiceNames() []string { return nil }
