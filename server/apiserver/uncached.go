package apiserver

import (
	"context"
	"reflect"

	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// uncachedStorage is upstream's storage without a watch cache, whose quiet watches get
// bookmarks.
//
// A client whose watch ends continues from the newest resourceVersion that it knows.
// Where nothing happens to a type, only bookmarks tell it a newer one; without them,
// that revision has been compacted after some minutes: "watch chan error: etcdserver:
// mvcc: required revision has been compacted", and the client lists everything again.
// A watch cache sends bookmarks. Upstream sends none without a cache, which it has for
// every type but events (k8s.io/apiserver pkg/storage/etcd3/watcher.go); here a client
// that allows bookmarks gets storage's notifications of progress as such.
func uncachedStorage(config *storagebackend.ConfigForResource, prefix string, keyFunc func(apiruntime.Object) (string, error),
	newFunc, newListFunc func() apiruntime.Object, getAttrs storage.AttrFunc, triggers storage.IndexerFuncs,
	indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
	store, destroy, err := generic.UndecoratedStorage(config, prefix, keyFunc, newFunc, newListFunc, getAttrs, triggers, indexers)
	if err != nil {
		return store, destroy, err
	}
	return bookmarked{store}, destroy, nil
}

// isUpstreamsUncached tells the decorator that upstream uses without a watch cache.
func isUpstreamsUncached(d generic.StorageDecorator) bool {
	return reflect.ValueOf(d).Pointer() == reflect.ValueOf(generic.UndecoratedStorage).Pointer()
}

// bookmarked is storage that asks for progress where a client allows bookmarks.
type bookmarked struct{ storage.Interface }

func (b bookmarked) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	opts.ProgressNotify = opts.ProgressNotify || opts.Predicate.AllowWatchBookmarks
	return b.Interface.Watch(ctx, key, opts)
}
