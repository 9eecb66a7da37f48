package bootstrap

import (
	"context"
	"fmt"
	"path"
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
	restclient "k8s.io/client-go/rest"
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
	manager string // of its fields; if empty, the program's name

	// fill is what its registry or a controller fills in, and status what a controller
	// reports about it. Both change the Object. also are managers that own some of the
	// fields.
	fill, status func()
	also         []metav1.ManagedFieldsEntry
}

func (p part) new(k *kind, o runtime.Object) object { return object{Object: o, kind: k, in: p} }

// encode returns the first objects, each as the API server would store it now. It leaves
// out those that are not stored at endpoint.
func (c *Config) encode(ctx context.Context, endpoint string) ([]keyValue, error) {
	objects, err := c.objects()
	if err != nil {
		return nil, err
	}
	e := encoder{now: metav1.NewTime(time.Now()), managers: map[*kind]*managedfields.FieldManager{}}
	all := make([]keyValue, 0, len(objects))
	for _, o := range objects {
		kv, err := e.encode(ctx, o, endpoint)
		if err != nil {
			return nil, fmt.Errorf("make %s: %w", o.resource.Resource, err)
		}
		if kv != nil {
			all = append(all, *kv)
		}
	}
	return all, nil
}

type encoder struct {
	now      metav1.Time
	managers map[*kind]*managedfields.FieldManager
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

	options, err := o.in.GetRESTOptions(o.resource.GroupResource(), internal)
	if err != nil {
		return nil, err
	}
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
	fm, err := e.manager(o)
	if err != nil {
		return err
	}
	empty, err := o.scheme.New(o.gvk())
	if err != nil {
		return err
	}
	name := o.manager
	if name == "" {
		name, _, _ = strings.Cut(restclient.DefaultKubernetesUserAgent(), "/")
	}
	if _, err := fm.Update(empty, o.Object, name); err != nil {
		return err
	}
	entries := accessor.GetManagedFields()
	for i := range entries {
		entries[i].Time = &e.now
	}
	for _, entry := range o.also {
		entry.APIVersion, entry.Time = o.gvk().GroupVersion().String(), &e.now
		entries = append([]metav1.ManagedFieldsEntry{entry}, entries...) // upstream's order
	}
	accessor.SetManagedFields(entries)
	return nil
}

func (e *encoder) manager(o object) (*managedfields.FieldManager, error) {
	if fm := e.managers[o.kind]; fm != nil {
		return fm, nil
	}
	var reset map[fieldpath.APIVersion]fieldpath.Filter
	if r, ok := o.strategy.(rest.ResetFieldsStrategy); ok {
		reset = fieldpath.NewExcludeFilterSetMap(r.GetResetFields())
	}
	fm, err := managedfields.NewDefaultFieldManager(converter{managedfields.NewDeducedTypeConverter()},
		o.scheme, o.scheme, o.scheme, o.gvk(), o.gvk().GroupVersion(), "", reset)
	e.managers[o.kind] = fm
	return fm, err
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
