package replacements

import (
	"fmt"

	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericoptions "k8s.io/apiserver/pkg/server/options"
)

// decorating are the options of an API server for each of its resources, with another decorator of storage.
type decorating struct {
	generic.RESTOptionsGetter
	choose func(schema.GroupResource, generic.StorageDecorator) generic.StorageDecorator
}

func (d decorating) GetRESTOptions(resource schema.GroupResource, example apiruntime.Object) (generic.RESTOptions, error) {
	options, err := d.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err == nil {
		options.Decorator = d.choose(resource, options.Decorator)
	}
	return options, err
}

func decorate(servers []*generic.RESTOptionsGetter, choose func(schema.GroupResource, generic.StorageDecorator) generic.StorageDecorator) {
	for _, getter := range servers {
		*getter = decorating{*getter, choose}
	}
}

// WithoutCaches takes the watch cache from a handful of types, and gives bookmarks to types that have none. If other API servers
// use the datastore, all types keep their caches. So does a type that sizes, which is --watch-cache-sizes, names. Call it before AlignCaches.
func WithoutCaches(singleServer bool, sizes []string, servers ...*generic.RESTOptionsGetter) error {
	uncached := map[schema.GroupResource]bool{}
	if singleServer {
		named, err := genericoptions.ParseWatchCacheSizes(sizes)
		if err != nil {
			return fmt.Errorf("--watch-cache-sizes: %w", err)
		}
		for _, resource := range handful {
			_, has := named[resource]
			uncached[resource] = !has
		}
	}
	decorate(servers, func(resource schema.GroupResource, theirs generic.StorageDecorator) generic.StorageDecorator {
		if isUpstreamsUncached(theirs) || isUpstreamsCacher(theirs) && uncached[resource] {
			return uncachedStorage
		}
		return theirs
	})
	return nil
}

// AlignCaches gives the watch caches another clock.
func AlignCaches(servers ...*generic.RESTOptionsGetter) {
	decorate(servers, func(_ schema.GroupResource, theirs generic.StorageDecorator) generic.StorageDecorator {
		if isUpstreamsCacher(theirs) {
			return alignedCacher
		}
		return theirs
	})
}

// AwaitCaches makes the storage of custom resources ready for the request that creates it.
func AwaitCaches(custom *generic.RESTOptionsGetter) {
	decorate([]*generic.RESTOptionsGetter{custom}, func(_ schema.GroupResource, theirs generic.StorageDecorator) generic.StorageDecorator {
		return await(theirs)
	})
}
