package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"path"
	stdruntime "runtime"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/util/workqueue"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kube-aggregator/pkg/registry/apiservice"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/registry/core/configmap"
	"k8s.io/kubernetes/pkg/registry/core/namespace"
	svcreg "k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/core/serviceaccount"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/flowschema"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/prioritylevelconfiguration"
	"k8s.io/kubernetes/pkg/registry/networking/ipaddress"
	"k8s.io/kubernetes/pkg/registry/networking/servicecidr"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	"k8s.io/kubernetes/pkg/registry/rbac/role"
	"k8s.io/kubernetes/pkg/registry/rbac/rolebinding"
	"k8s.io/kubernetes/pkg/registry/scheduling/priorityclass"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// kind is how upstream creates the objects of one resource.
type kind struct {
	resource schema.GroupVersionResource
	strategy rest.RESTCreateStrategy
	scheme   *runtime.Scheme
}

func legacy(group, resource string, strategy rest.RESTCreateStrategy) *kind {
	return &kind{schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}, strategy, legacyscheme.Scheme}
}

var (
	namespaces          = legacy("", "namespaces", namespace.Strategy)
	serviceAccounts     = legacy("", "serviceaccounts", serviceaccount.Strategy)
	configMaps          = legacy("", "configmaps", configmap.Strategy)
	services            = legacy("", "services", svcreg.Strategy)
	clusterRoles        = legacy("rbac.authorization.k8s.io", "clusterroles", clusterrole.Strategy)
	clusterRoleBindings = legacy("rbac.authorization.k8s.io", "clusterrolebindings", clusterrolebinding.Strategy)
	roles               = legacy("rbac.authorization.k8s.io", "roles", role.Strategy)
	roleBindings        = legacy("rbac.authorization.k8s.io", "rolebindings", rolebinding.Strategy)
	priorityClasses     = legacy("scheduling.k8s.io", "priorityclasses", priorityclass.Strategy)
	flowSchemas         = legacy("flowcontrol.apiserver.k8s.io", "flowschemas", flowschema.Strategy)
	priorityLevels      = legacy("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations", prioritylevelconfiguration.Strategy)
	serviceCIDRs        = legacy("networking.k8s.io", "servicecidrs", servicecidr.Strategy)
	ipAddresses         = legacy("networking.k8s.io", "ipaddresses", ipaddress.Strategy)
	apiServices         = &kind{schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
		apiservice.NewStrategy(aggregatorscheme.Scheme), aggregatorscheme.Scheme}
)

// object is an object to create, and what upstream does to it besides.
type object struct {
	runtime.Object // version v1
	*kind
	in      part
	manager string // of its fields; if empty, kube-apiserver

	// fill is what its registry or a controller fills in, and status what a controller
	// reports about it. Both change the Object. also are managers that own some of the
	// fields.
	fill, status func()
	also         []metav1.ManagedFieldsEntry
}

// controllerManager is the manager of what controllers create.
const controllerManager = "kube-controller-manager"

func (o object) by(manager string) object {
	o.manager = manager
	return o
}

func (p part) new(k *kind, o runtime.Object) object { return object{Object: o, kind: k, in: p} }

// encode returns the first objects, each as the API server would store it now. It leaves
// out those that are not stored at endpoint.
func (c *Config) encode(ctx context.Context, endpoint string) ([]keyValue, error) {
	objects, err := c.objects()
	if err != nil {
		return nil, err
	}
	e := encoder{now: metav1.NewTime(time.Now()), kinds: map[*kind]*kindStored{}}
	for _, o := range objects {
		if err := e.prepare(o); err != nil {
			return nil, fmt.Errorf("make %s: %w", o.resource.Resource, err)
		}
	}
	// This is the longest step of a new cluster's start that nothing else can run beside.
	encoded, errs := make([]*keyValue, len(objects)), make([]error, len(objects))
	workqueue.ParallelizeUntil(ctx, stdruntime.GOMAXPROCS(0), len(objects), func(i int) {
		if encoded[i], errs[i] = e.encode(ctx, objects[i], endpoint); errs[i] != nil {
			errs[i] = fmt.Errorf("make %s: %w", objects[i].resource.Resource, errs[i])
		}
	}, workqueue.WithChunkSize(atOnce))
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	all := make([]keyValue, 0, len(objects))
	for _, kv := range encoded {
		if kv != nil {
			all = append(all, *kv)
		}
	}
	return all, nil
}

// atOnce is how many objects a worker of encode takes at once.
const atOnce = 8

// encoder encodes objects. Its methods may be called concurrently once it is prepared for all of
// them.
type encoder struct {
	now   metav1.Time
	kinds map[*kind]*kindStored
}

// kindStored is what the objects of a kind have in common.
type kindStored struct {
	options generic.RESTOptions
	manager *managedfields.FieldManager
}

// prepare makes what the objects of o's kind have in common.
func (e *encoder) prepare(o object) error {
	if e.kinds[o.kind] != nil {
		return nil
	}
	gvk := o.gvk()
	internal, err := o.scheme.New(schema.GroupVersionKind{Group: gvk.Group, Version: runtime.APIVersionInternal, Kind: gvk.Kind})
	if err != nil {
		return err
	}
	k := &kindStored{}
	if k.options, err = o.in.GetRESTOptions(o.resource.GroupResource(), internal); err != nil {
		return err
	}
	if k.manager, err = newManager(o); err != nil {
		return err
	}
	e.kinds[o.kind] = k
	return nil
}

// encode does what upstream does with a request to create o, in that order
// (k8s.io/apiserver pkg/endpoints/handlers/create.go, pkg/registry/generic/registry Create,
// pkg/storage/etcd3 Create). It returns nil and no error for an object that is stored
// elsewhere.
func (e *encoder) encode(ctx context.Context, o object, endpoint string) (*keyValue, error) {
	o.scheme.Default(o.Object)
	if err := e.manage(o); err != nil {
		return nil, err
	}
	if o.fill != nil {
		o.fill()
	}
	internal, err := o.scheme.ConvertToVersion(o.Object, schema.GroupVersion{Group: o.resource.Group, Version: runtime.APIVersionInternal})
	if err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(internal)
	if err != nil {
		return nil, err
	}
	rest.FillObjectMetaSystemFields(accessor)
	accessor.SetCreationTimestamp(e.now)
	ctx = request.WithNamespace(ctx, accessor.GetNamespace())
	ctx = request.WithRequestInfo(ctx, o.request(accessor)) // validation needs it
	if err := rest.BeforeCreate(o.strategy, ctx, internal); err != nil {
		return nil, err
	}
	stored := internal
	if o.status != nil {
		if err := o.scheme.Convert(internal, o.Object, nil); err != nil {
			return nil, err
		}
		o.status()
		stored = o.Object
	}

	options := e.kinds[o.kind].options
	if servers := options.StorageConfig.Transport.ServerList; len(servers) != 1 || servers[0] != endpoint {
		return nil, nil
	}
	key, err := keyOf(ctx, o, options, accessor.GetName())
	if err != nil {
		return nil, err
	}
	data, err := runtime.Encode(options.StorageConfig.Codec, stored)
	if err != nil {
		return nil, err
	}
	if transformer := options.StorageConfig.Transformer; transformer != nil {
		if data, err = transformer.TransformToStorage(ctx, data, value.DefaultContext(key)); err != nil {
			return nil, err
		}
	}
	return &keyValue{key, data}, nil
}

// keyOf returns the key where upstream stores an object (pkg/registry/generic/registry
// CompleteWithOptions, pkg/storage/etcd3 newStore).
func keyOf(ctx context.Context, o object, options generic.RESTOptions, name string) (string, error) {
	of := registry.NoNamespaceKeyFunc
	if o.strategy.NamespaceScoped() {
		of = registry.NamespaceKeyFunc
	}
	key, err := of(ctx, "/"+strings.TrimPrefix(options.ResourcePrefix, "/"), name)
	return path.Join("/", options.StorageConfig.Prefix) + key, err
}

// manage records which manager owns which fields.
func (e *encoder) manage(o object) error {
	accessor, err := meta.Accessor(o.Object)
	if err != nil {
		return err
	}
	empty, err := o.scheme.New(o.gvk())
	if err != nil {
		return err
	}
	name := o.manager
	if name == "" {
		name = "kube-apiserver"
	}
	if _, err := e.kinds[o.kind].manager.Update(empty, o.Object, name); err != nil {
		return err
	}
	entries := accessor.GetManagedFields()
	for i := range entries {
		entries[i].Time = &e.now
	}
	for _, entry := range o.also {
		entry.APIVersion, entry.Time = o.gvk().GroupVersion().String(), &e.now
		entries = append(entries, entry)
	}
	slices.SortStableFunc(entries, func(a, b metav1.ManagedFieldsEntry) int {
		return strings.Compare(string(a.Operation), string(b.Operation))
	}) // as upstream: Apply first
	accessor.SetManagedFields(entries)
	return nil
}

func newManager(o object) (*managedfields.FieldManager, error) {
	var reset map[fieldpath.APIVersion]fieldpath.Filter
	if r, ok := o.strategy.(rest.ResetFieldsStrategy); ok {
		reset = fieldpath.NewExcludeFilterSetMap(r.GetResetFields())
	}
	return managedfields.NewDefaultFieldManager(converter{managedfields.NewDeducedTypeConverter()},
		o.scheme, o.scheme, o.scheme, o.gvk(), o.gvk().GroupVersion(), "", reset)
}

func (o object) request(accessor metav1.Object) *request.RequestInfo {
	return &request.RequestInfo{
		IsResourceRequest: true, Verb: "create",
		APIGroup: o.resource.Group, APIVersion: o.resource.Version, Resource: o.resource.Resource,
		Namespace: accessor.GetNamespace(), Name: accessor.GetName(),
	}
}

func (o object) gvk() schema.GroupVersionKind {
	kinds, _, err := o.scheme.ObjectKinds(o.Object)
	if err != nil {
		return schema.GroupVersionKind{} // no scheme has an object of it
	}
	return kinds[0]
}
