package replacements

import (
	"time"

	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

const (
	// fillLimit is how long a request may wait for a cache to be filled. It takes
	// milliseconds where storage is well; while it does, no storage of another kind
	// is made.
	fillLimit = 250 * time.Millisecond
	fillPoll  = time.Millisecond
)

// await makes storage that is ready for the request it is made for. Storage of custom
// resources is made by the first request, which upstream then refuses ("storage is
// (re)initializing"), since the cache is empty: clients try again after a second. And
// when it is the finalizer of a CustomResourceDefinition that nobody has used, its
// second attempt comes 5 ms later, and is its last one until the resync after five
// minutes, if its informer has not heard of what the first one wrote
// (k8s.io/apiextensions-apiserver pkg/controller/finalizer: a conflict is no error, and
// a change of the condition Terminating alone no reason to look again).
func await(decorator generic.StorageDecorator) generic.StorageDecorator {
	return func(config *storagebackend.ConfigForResource, prefix string, keyFunc func(apiruntime.Object) (string, error),
		newFunc, newListFunc func() apiruntime.Object, getAttrs storage.AttrFunc, triggers storage.IndexerFuncs,
		indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		store, destroy, err := decorator(config, prefix, keyFunc, newFunc, newListFunc, getAttrs, triggers, indexers)
		if err != nil {
			return store, destroy, err
		}
		for began := time.Now(); store.ReadinessCheck() != nil && time.Since(began) < fillLimit; {
			time.Sleep(fillPoll)
		}
		return store, destroy, nil
	}
}
