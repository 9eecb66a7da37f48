package openapi

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"sync"
	"unsafe"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
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
// first request or remote APIService, and reads the servers' documents when a request needs them.
type Aggregated struct {
	v2 *aggregatedV2
	v3 *aggregatedV3
}

// Aggregate replaces the aggregator's own OpenAPI. Call Serve when the aggregator has been
// prepared to run.
func Aggregate(s *aggregatorserver.APIAggregator, documents *Documents) (*Aggregated, error) {
	downloader := openapiaggregator.NewDownloader()
	a := &Aggregated{newAggregatedV2(s.GenericAPIServer, &downloader, documents.v2), newAggregatedV3(s.GenericAPIServer, documents)}
	// Upstream has no setters. Without its configuration, the aggregator builds nothing, but
	// its controllers still report the APIServices.
	controller := openapicontroller.NewAggregationController(&downloader, a.v2)
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
// document, so it expires like the documents themselves.
type aggregatedV2 struct {
	running  expiring[runningV2]
	mu       sync.Mutex
	services map[string]remoteService
}

type runningV2 struct {
	openapiaggregator.SpecAggregator
	paths *mux.PathRecorderMux
}

type remoteService struct {
	*apiregistration.APIService
	http.Handler
}

func newAggregatedV2(s *genericapiserver.GenericAPIServer, downloader *openapiaggregator.Downloader, config *openapicommon.Config) *aggregatedV2 {
	a := &aggregatedV2{services: map[string]remoteService{}}
	a.running.make = func() (runningV2, error) {
		paths := mux.NewPathRecorderMux("aggregated-openapi-v2")
		specs, err := openapiaggregator.BuildAndRegisterAggregator(
			downloader, s.NextDelegate(), s.Handler.GoRestfulContainer.RegisteredWebServices(), config, paths)
		if err != nil {
			return runningV2{}, err
		}
		a.mu.Lock()
		services := maps.Clone(a.services)
		a.mu.Unlock()
		for name, service := range services {
			if err := specs.AddUpdateAPIService(service.APIService, service.Handler); err != nil {
				return runningV2{}, err
			}
			_ = specs.UpdateAPIServiceSpec(name) // the controller tries again, and logs the error
		}
		return runningV2{specs, paths}, nil
	}
	return a
}

// AddUpdateAPIService implements openapiaggregator.SpecAggregator.
func (a *aggregatedV2) AddUpdateAPIService(apiService *apiregistration.APIService, handler http.Handler) error {
	a.mu.Lock()
	a.services[apiService.Name] = remoteService{apiService, handler}
	a.mu.Unlock()
	if running, ok := a.running.peek(); ok {
		return running.AddUpdateAPIService(apiService, handler)
	}
	return nil
}

// UpdateAPIServiceSpec implements openapiaggregator.SpecAggregator.
func (a *aggregatedV2) UpdateAPIServiceSpec(name string) error {
	a.mu.Lock()
	_, known := a.services[name]
	a.mu.Unlock()
	if !known {
		return openapiaggregator.ErrAPIServiceNotFound
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

// aggregatedV3 merges the index of /openapi/v3, and proxies requests for documents to their
// servers. Upstream's aggregator keeps only the index, so it is not stopped after it has
// started.
type aggregatedV3 struct {
	start func() (openapiv3aggregator.SpecProxier, error)
	paths *mux.PathRecorderMux

	mu      sync.Mutex
	local   []string                        // upstream's names of the servers in this process
	running openapiv3aggregator.SpecProxier // nil before the start
}

// aggregatorsTypes is upstream's name for the documents of the aggregator's own types.
const aggregatorsTypes = "k8s_internal_local_kube_aggregator_types"

func newAggregatedV3(s *genericapiserver.GenericAPIServer, documents *Documents) *aggregatedV3 {
	a := &aggregatedV3{paths: mux.NewPathRecorderMux("aggregated-openapi-v3")}
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
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running != nil {
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
	a.running = running
	return running, nil
}

// current returns the aggregator's handler after an update from the servers in this process,
// because a CustomResourceDefinition may have changed.
func (a *aggregatedV3) current() (http.Handler, error) {
	running, err := a.started()
	if err != nil {
		return nil, err
	}
	for _, name := range a.local { // which does not change any more
		if err := running.UpdateAPIServiceSpec(name); err != nil {
			return nil, err
		}
	}
	return a.paths, nil
}

// AddUpdateAPIService implements openapiv3aggregator.SpecProxier.
func (a *aggregatedV3) AddUpdateAPIService(handler http.Handler, apiService *apiregistration.APIService) {
	running, err := a.started()
	if err != nil {
		utilruntime.HandleError(fmt.Errorf("merge OpenAPI v3: %w", err)) // a request gets it, too
		return
	}
	running.AddUpdateAPIService(handler, apiService)
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
	running := a.running
	a.mu.Unlock()
	if running != nil {
		running.RemoveAPIServiceSpec(name)
	}
}

// GetAPIServiceNames implements openapiv3aggregator.SpecProxier. Upstream's controller calls
// it to learn which servers of this process to poll. It polls none, because current updates
// them.
func (a *aggregatedV3) GetAPIServiceNames() []string { return nil }
