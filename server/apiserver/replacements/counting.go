package replacements

import (
	"context"
	"sync"
	"time"

	apiruntime "k8s.io/apimachinery/pkg/runtime"
	etcd3metrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// countJitter is upstream's resourceCountPollPeriodJitter (k8s.io/apiserver
// pkg/registry/generic/registry/store.go).
const countJitter = 1.2

// count makes storage whose objects are counted every now and then for metrics, and
// for what flow control expects a list to cost. It is what upstream's Store does when
// it is given a period (startObservingCount), which keeps a goroutine for it.
func count(decorator generic.StorageDecorator, resource schema.GroupResource, every time.Duration, tracker flowcontrolrequest.StorageObjectCountTracker) generic.StorageDecorator {
	return func(config *storagebackend.ConfigForResource, prefix string, keyFunc func(apiruntime.Object) (string, error),
		newFunc, newListFunc func() apiruntime.Object, getAttrs storage.AttrFunc, triggers storage.IndexerFuncs,
		indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		store, destroy, err := decorator(config, prefix, keyFunc, newFunc, newListFunc, getAttrs, triggers, indexers)
		if err != nil {
			return store, destroy, err
		}
		c := &counter{resource: resource, store: store, tracker: tracker, every: every}
		c.begin()
		return store, sync.OnceFunc(func() {
			c.stop()
			destroy()
		}), nil
	}
}

// counter counts the objects of a resource.
type counter struct {
	resource schema.GroupResource
	store    storage.Interface
	tracker  flowcontrolrequest.StorageObjectCountTracker
	every    time.Duration

	mu      sync.Mutex
	next    *time.Timer
	stopped bool
}

func (c *counter) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = time.AfterFunc(0, c.count)
}

func (c *counter) count() {
	stats, err := c.store.Stats(context.Background())
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return // its metrics are gone
	}
	etcd3metrics.UpdateStoreStats(c.resource, stats, err)
	if err == nil && c.tracker != nil {
		c.tracker.Set(c.resource.String(), stats)
	}
	c.next.Reset(wait.Jitter(c.every, countJitter))
}

func (c *counter) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	c.next.Stop()
	etcd3metrics.DeleteStoreStats(c.resource)
}
