package replacements

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/emicklei/go-restful/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/cluster/ports"
	"k8s.io/kubernetes/pkg/probe"
	"k8s.io/kubernetes/pkg/registry/core/componentstatus"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
)

// Component is the health of a part of the control plane that runs in this process.
type Component func(*http.Request) error

// DoServerCheck answers as upstream's probe of /healthz does.
func (c Component) DoServerCheck() (probe.Result, string, error) {
	r, err := http.NewRequest(http.MethodGet, "/healthz", nil)
	if err != nil {
		return probe.Unknown, "", err
	}
	if err := c(r); err != nil {
		return probe.Failure, err.Error(), nil
	}
	return probe.Success, "ok", nil
}

const componentStatuses = "componentstatuses"

// AskComponents makes the API for ComponentStatus ask components instead of the ports of
// kube-controller-manager and kube-scheduler on this machine. One that is not among them may run as a process
// of its own, and is asked there.
//
// Upstream's list of servers is in a closure behind the routes. So a second group of handlers, of upstream's
// own storage with another list, takes the place of the functions of these routes. All else of the routes stays,
// for OpenAPI and discovery.
func AskComponents(container *restful.Container, storage serverstorage.StorageFactory, components map[string]Component) error {
	servers := func() map[string]componentstatus.Server {
		all := map[string]componentstatus.Server{
			"controller-manager": processOf(ports.KubeControllerManagerPort),
			"scheduler":          processOf(schedulerconfig.DefaultKubeSchedulerPort),
		}
		for i, config := range storage.Configs() {
			all[fmt.Sprintf("etcd-%d", i)] = &componentstatus.EtcdServer{Config: config}
		}
		for name, component := range components {
			all[name] = component
		}
		return all
	}
	scheme := legacyscheme.Scheme
	info := genericapiserver.NewDefaultAPIGroupInfo(corev1.GroupName, scheme, legacyscheme.ParameterCodec, legacyscheme.Codecs)
	group := endpoints.APIGroupVersion{
		Root: genericapiserver.DefaultLegacyAPIPrefix, GroupVersion: corev1.SchemeGroupVersion,
		Storage:                     map[string]rest.Storage{componentStatuses: componentstatus.NewStorage(servers)},
		AllServedVersionsByResource: map[string][]string{componentStatuses: {corev1.SchemeGroupVersion.Version}},
		OptionsExternalVersion:      info.OptionsExternalVersion, MetaGroupVersion: info.MetaGroupVersion,
		ParameterCodec: info.ParameterCodec, Serializer: info.NegotiatedSerializer,
		Creater: scheme, Convertor: scheme, ConvertabilityChecker: scheme, Defaulter: scheme, Typer: scheme,
		UnsafeConvertor: runtime.UnsafeObjectConvertor(scheme), Namer: runtime.Namer(meta.NewAccessor()),
		EquivalentResourceRegistry: runtime.NewEquivalentResourceRegistry(), TypeConverter: managedfields.NewDeducedTypeConverter(),
	}
	ours := restful.NewContainer()
	if _, _, err := group.InstallREST(ours); err != nil {
		return fmt.Errorf("make handlers for ComponentStatus: %w", err)
	}
	functions := map[string]restful.RouteFunction{}
	for _, route := range componentRoutes(ours) {
		functions[route.Method+" "+route.Path] = route.Function
	}
	routes := componentRoutes(container)
	for _, route := range routes {
		function := functions[route.Method+" "+route.Path]
		if function == nil {
			return fmt.Errorf("the API for ComponentStatus has a new route: %s %s", route.Method, route.Path)
		}
		route.Function = function
		delete(functions, route.Method+" "+route.Path)
	}
	if len(functions) > 0 {
		return errors.New("the API for ComponentStatus has lost routes: " + strings.Join(slices.Sorted(maps.Keys(functions)), ", "))
	}
	return nil
}

// processOf is upstream's probe (kubernetes pkg/registry/core/rest, componentStatusStorage).
func processOf(port int) componentstatus.Server {
	return &componentstatus.HttpServer{
		EnableHTTPS: true, TLSConfig: &tls.Config{InsecureSkipVerify: true}, Addr: "127.0.0.1", Port: port, Path: "/healthz",
	}
}

// componentRoutes are the routes of ComponentStatus in a container. The container uses them, and not copies.
func componentRoutes(container *restful.Container) (routes []*restful.Route) {
	base := genericapiserver.DefaultLegacyAPIPrefix + "/" + corev1.SchemeGroupVersion.Version
	for _, service := range container.RegisteredWebServices() {
		if service.RootPath() != base {
			continue
		}
		all := service.Routes()
		for i := range all {
			if rest, ok := strings.CutPrefix(all[i].Path, base+"/"+componentStatuses); ok && (rest == "" || rest[0] == '/') {
				routes = append(routes, &all[i])
			}
		}
	}
	return routes
}
