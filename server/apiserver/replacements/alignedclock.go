package replacements

import (
	"reflect"
	"runtime"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	cacherstorage "k8s.io/apiserver/pkg/storage/cacher"

	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// isUpstreamsCacher reports whether d is the decorator that StorageWithCacher returns. The
// other decorator has no cache, and is used if the user has switched the cache off. d is a
// function literal within StorageWithCacher, and the compiler may have copied it, so only its
// name identifies it.
func isUpstreamsCacher(d generic.StorageDecorator) bool {
	return strings.Contains(runtime.FuncForPC(reflect.ValueOf(d).Pointer()).Name(), "StorageWithCacher")
}

// alignedCacher is upstream's StorageWithCacher (k8s.io/apiserver
// pkg/registry/generic/registry/storage_factory.go) with another clock, for which upstream has
// no parameter, and behind reached. TestCacherConfigIsUpstreams fails when upstream's configuration gets a new
// field.
func alignedCacher(config *storagebackend.ConfigForResource, prefix string, keyFunc func(apiruntime.Object) (string, error),
	newFunc, newListFunc func() apiruntime.Object, getAttrs storage.AttrFunc, triggers storage.IndexerFuncs,
	indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
	store, destroy, err := generic.NewRawStorage(config, newFunc, newListFunc, prefix)
	if err != nil {
		return store, destroy, err
	}
	cacher, err := cacherstorage.NewCacherFromConfig(cacherstorage.Config{
		Storage:             filledFrom(store, newFunc()),
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
		Clock:               alignedClock{},
	})
	if err != nil {
		return nil, func() {}, err
	}
	delegator := cacherstorage.NewCacheDelegator(cacher, store)
	return newReached(delegator), sync.OnceFunc(func() {
		delegator.Stop()
		cacher.Stop()
		destroy()
	}), nil
}

// filledFrom is a cache's storage. The cache of a built-in type is filled with lists of 10,000 objects,
// and not with a watch, which costs a channel and a goroutine for each object. Custom resources
// keep the watch: it converts ten of them at a time, and a conversion may have to wait for a webhook.
func filledFrom(store storage.Interface, object apiruntime.Object) storage.Interface {
	if _, custom := object.(*unstructured.Unstructured); custom {
		return store
	}
	return listed{store}
}

// listed tells the cache's reflector to list (k8s.io/client-go/util/watchlist).
type listed struct{ storage.Interface }

func (listed) IsWatchListSemanticsUnSupported() bool { return true }

// alignedClock is a clock whose timers of a second or more fire on common beats: each fires at
// the beat nearest to its time. A cache has two such timers. One fires at a random interval of
// 1 to 1.25 s and checks which watches are due for a bookmark. The other fires every 15 s and
// checks whether storage was compacted. With this clock, the first one fires every 1.25 s.
type alignedClock struct{ clock.RealClock }

const beat = 1250 * time.Millisecond

var beatsSince = time.Now()

// onBeat returns the time from now to the beat nearest to now+d.
func onBeat(now time.Time, d time.Duration) time.Duration {
	if d < time.Second {
		return d
	}
	since := now.Sub(beatsSince)
	return (since + d).Round(beat) - since
}

func (c alignedClock) NewTimer(d time.Duration) clock.Timer {
	return alignedTimer{c.RealClock.NewTimer(onBeat(c.Now(), d))}
}

type alignedTimer struct{ clock.Timer }

func (t alignedTimer) Reset(d time.Duration) bool { return t.Timer.Reset(onBeat(time.Now(), d)) }
