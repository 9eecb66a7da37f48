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
	// fillLimit is how long a request may wait for a cache to be filled. This takes
	// milliseconds with a healthy datastore. Meanwhile, no storage of another custom resource
	// can be created.
	fillLimit = 250 * time.Millisecond
	fillPoll  = time.Millisecond
)

// await makes decorator return storage that is ready for the request that created it.
//
// The first request for a custom resource creates its storage. The cache is empty then, so
// upstream refuses the request ("storage is (re)initializing"), and the client tries again
// after a second.
//
// The finalizer of a CustomResourceDefinition can be that client, if nobody has used the
// definition. Its second attempt comes 5 ms later. If its informer has not yet seen what the
// first attempt wrote, this is its last attempt until the resync after five minutes, because
// it does not treat a conflict as an error, and does not look again when only the condition
// Terminating has changed (k8s.io/apiextensions-apiserver pkg/controller/finalizer).
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
