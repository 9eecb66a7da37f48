package replacements

import (
	"context"
	"reflect"

	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// uncachedStorage is upstream's storage without a watch cache, with bookmarks for quiet
// watches.
//
// A client whose watch ends continues from the newest resourceVersion that it knows. If no
// object of a type changes, only bookmarks tell the client a newer one. Without them, its
// revision is compacted after some minutes: it gets "watch chan error: etcdserver: mvcc:
// required revision has been compacted" and lists everything again.
//
// A watch cache sends bookmarks. Upstream's storage without a cache, which upstream uses only
// for events, sends none (k8s.io/apiserver pkg/storage/etcd3/watcher.go). Here, a client that
// allows bookmarks gets the datastore's progress notifications as bookmarks.
func uncachedStorage(config *storagebackend.ConfigForResource, prefix string, keyFunc func(apiruntime.Object) (string, error),
	newFunc, newListFunc func() apiruntime.Object, getAttrs storage.AttrFunc, triggers storage.IndexerFuncs,
	indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
	store, destroy, err := generic.UndecoratedStorage(config, prefix, keyFunc, newFunc, newListFunc, getAttrs, triggers, indexers)
	if err != nil {
		return store, destroy, err
	}
	return newReached(bookmarked{store}), destroy, nil
}

// isUpstreamsUncached reports whether d is the decorator that upstream uses without a watch
// cache.
func isUpstreamsUncached(d generic.StorageDecorator) bool {
	return reflect.ValueOf(d).Pointer() == reflect.ValueOf(generic.UndecoratedStorage).Pointer()
}

// bookmarked is storage that requests progress notifications for clients that allow bookmarks.
type bookmarked struct{ storage.Interface }

func (b bookmarked) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	opts.ProgressNotify = opts.ProgressNotify || opts.Predicate.AllowWatchBookmarks
	return b.Interface.Watch(ctx, key, opts)
}

// handful are types of which a cluster has few objects, and which hardly any client watches
// except the controllers in this process. Their watches read the datastore's history, and each
// read decodes the object again. CustomResourceDefinitions have other clients, too, but are large
// and rarely change.
var handful = []schema.GroupResource{
	{Resource: "limitranges"}, {Resource: "podtemplates"}, {Resource: "replicationcontrollers"}, {Resource: "resourcequotas"},
	{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicies"},
	{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicybindings"},
	{Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations"},
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies"},
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicybindings"},
	{Group: "admissionregistration.k8s.io", Resource: "validatingwebhookconfigurations"},
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
	{Group: "apiregistration.k8s.io", Resource: "apiservices"},
	{Group: "apps", Resource: "controllerrevisions"},
	{Group: "certificates.k8s.io", Resource: "clustertrustbundles"},
	{Group: "flowcontrol.apiserver.k8s.io", Resource: "flowschemas"},
	{Group: "flowcontrol.apiserver.k8s.io", Resource: "prioritylevelconfigurations"},
	{Group: "networking.k8s.io", Resource: "ingressclasses"}, {Group: "networking.k8s.io", Resource: "servicecidrs"},
	{Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"}, {Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
	{Group: "rbac.authorization.k8s.io", Resource: "rolebindings"}, {Group: "rbac.authorization.k8s.io", Resource: "roles"},
	{Group: "resource.k8s.io", Resource: "deviceclasses"}, {Group: "resource.k8s.io", Resource: "devicetaintrules"},
	{Group: "resource.k8s.io", Resource: "resourceclaimtemplates"},
	{Group: "scheduling.k8s.io", Resource: "priorityclasses"},
	{Group: "storage.k8s.io", Resource: "csistoragecapacities"}, {Group: "storage.k8s.io", Resource: "storageclasses"},
	{Group: "storage.k8s.io", Resource: "volumeattributesclasses"},
	{Group: "storagemigration.k8s.io", Resource: "storageversionmigrations"},
}
