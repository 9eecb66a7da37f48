package apiserver

import (
	"context"
	"fmt"
	"path"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"time"

	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/registry/generic"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	cacherstorage "k8s.io/apiserver/pkg/storage/cacher"
	etcd3metrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// quietStorage makes storage whose idle caches wake the process all together, and
// whose objects are counted without a goroutine for each resource. Upstream has a
// timer of its own for each of sixty caches.
//
// With storage of this process alone, types of which there is a handful have no cache
// unless the user has named a size: what they would keep, storage keeps in memory.
func quietStorage(c configs, alone bool, sizes []string, stored *prefixes) error {
	uncached := map[schema.GroupResource]bool{}
	if alone {
		named, err := genericoptions.ParseWatchCacheSizes(sizes)
		if err != nil {
			return fmt.Errorf("--watch-cache-sizes: %w", err)
		}
		for _, resource := range handful {
			_, has := named[resource]
			uncached[resource] = !has
		}
	}
	servers := []*generic.RESTOptionsGetter{
		&c.kube.ControlPlane.Generic.RESTOptionsGetter,
		&c.extensions.GenericConfig.RESTOptionsGetter,
		&c.extensions.ExtraConfig.CRDRESTOptionsGetter,
	}
	if c.aggregator != nil {
		servers = append(servers, &c.aggregator.GenericConfig.RESTOptionsGetter)
	}
	for _, getter := range servers {
		*getter = quietOptions{*getter, uncached, getter == &c.extensions.ExtraConfig.CRDRESTOptionsGetter, stored}
	}
	return nil
}

// handful are types of which a cluster has few, and which hardly anybody watches but
// controllers in this process. A watch of one is of storage's history, and an answer to
// a read is decoded each time.
var handful = []schema.GroupResource{
	{Resource: "limitranges"}, {Resource: "podtemplates"}, {Resource: "replicationcontrollers"}, {Resource: "resourcequotas"},
	{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicies"},
	{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicybindings"},
	{Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations"},
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies"},
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicybindings"},
	{Group: "admissionregistration.k8s.io", Resource: "validatingwebhookconfigurations"},
	{Group: "apiregistration.k8s.io", Resource: "apiservices"},
	{Group: "apps", Resource: "controllerrevisions"},
	{Group: "flowcontrol.apiserver.k8s.io", Resource: "flowschemas"},
	{Group: "flowcontrol.apiserver.k8s.io", Resource: "prioritylevelconfigurations"},
	{Group: "networking.k8s.io", Resource: "ingressclasses"}, {Group: "networking.k8s.io", Resource: "servicecidrs"},
	{Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"}, {Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
	{Group: "rbac.authorization.k8s.io", Resource: "rolebindings"}, {Group: "rbac.authorization.k8s.io", Resource: "roles"},
	{Group: "resource.k8s.io", Resource: "deviceclasses"}, {Group: "resource.k8s.io", Resource: "resourceclaimtemplates"},
	{Group: "scheduling.k8s.io", Resource: "priorityclasses"},
	{Group: "storage.k8s.io", Resource: "csistoragecapacities"}, {Group: "storage.k8s.io", Resource: "storageclasses"},
	{Group: "storage.k8s.io", Resource: "volumeattributesclasses"},
}

// quietOptions are upstream's options for a resource with our decorator.
type quietOptions struct {
	generic.RESTOptionsGetter
	uncached map[schema.GroupResource]bool
	awaited  bool // storage is made when somebody has asked for it
	stored   *prefixes
}

func (q quietOptions) GetRESTOptions(resource schema.GroupResource, example apiruntime.Object) (generic.RESTOptions, error) {
	options, err := q.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return options, err
	}
	q.stored.add(path.Join("/", options.StorageConfig.Prefix, options.ResourcePrefix), resource)
	if isUpstreamsCacher(options.Decorator) {
		options.Decorator = quietCacher
		if q.uncached[resource] {
			options.Decorator = uncachedStorage
		}
	} else if isUpstreamsUncached(options.Decorator) {
		options.Decorator = uncachedStorage
	}
	if options.CountMetricPollPeriod > 0 {
		options.Decorator = count(options.Decorator, resource, options.CountMetricPollPeriod, options.StorageObjectCountTracker)
		options.CountMetricPollPeriod = 0
	}
	if q.awaited {
		options.Decorator = await(options.Decorator)
	}
	return options, nil
}

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

// isUpstreamsCacher tells the decorator that StorageWithCacher makes from the one
// without a cache, which is used where the user has switched it off. It is a function
// within that function, of which the compiler may have made copies.
func isUpstreamsCacher(d generic.StorageDecorator) bool {
	return strings.Contains(runtime.FuncForPC(reflect.ValueOf(d).Pointer()).Name(), "StorageWithCacher")
}

// quietCacher is upstream's StorageWithCacher (k8s.io/apiserver
// pkg/registry/generic/registry/storage_factory.go) with another clock, for which
// that has no parameter. TestCacherConfigIsUpstreams fails when there is more to fill in.
func quietCacher(config *storagebackend.ConfigForResource, prefix string, keyFunc func(apiruntime.Object) (string, error),
	newFunc, newListFunc func() apiruntime.Object, getAttrs storage.AttrFunc, triggers storage.IndexerFuncs,
	indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
	store, destroy, err := generic.NewRawStorage(config, newFunc, newListFunc, prefix)
	if err != nil {
		return store, destroy, err
	}
	cacher, err := cacherstorage.NewCacherFromConfig(cacherstorage.Config{
		Storage:             store,
		Versioner:           storage.APIObjectVersioner{},
		GroupResource:       config.GroupResource,
		EventsHistoryWindow: config.EventsHistoryWindow,
		ResourcePrefix:      prefix,
		KeyFunc:             keyFunc,
		NewFunc:             newFunc,
		NewListFunc:         newListFunc,
		GetAttrsFunc:        getAttrs,
		IndexerFuncs:        triggers,
		Indexers:            indexers,
		Codec:               config.Codec,
		Clock:               together{},
	})
	if err != nil {
		return nil, func() {}, err
	}
	delegator := cacherstorage.NewCacheDelegator(cacher, store)
	return delegator, sync.OnceFunc(func() {
		delegator.Stop()
		cacher.Stop()
		destroy()
	}), nil
}

// together is a clock whose timers of a second and more go off at the nearest of
// points in time that are a beat apart. A cache has two: every 1 to 1.25 s, at random,
// it looks for watches to which a bookmark is due, and every 15 s whether storage was
// compacted. With this clock, the first is every 1.25 s.
type together struct{ clock.RealClock }

const beat = 1250 * time.Millisecond

var beatsSince = time.Now()

// onBeat is how long it is from now to the beat that is nearest to in d.
func onBeat(now time.Time, d time.Duration) time.Duration {
	if d < time.Second {
		return d
	}
	since := now.Sub(beatsSince)
	return (since + d).Round(beat) - since
}

func (c together) NewTimer(d time.Duration) clock.Timer {
	return togetherTimer{c.RealClock.NewTimer(onBeat(c.Now(), d))}
}

type togetherTimer struct{ clock.Timer }

func (t togetherTimer) Reset(d time.Duration) bool { return t.Timer.Reset(onBeat(time.Now(), d)) }

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
