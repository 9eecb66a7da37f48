package replacements

import (
	"fmt"

	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"github.com/karve-k8s/karve/server/deviations"
)

// Storage changes how the chain's servers store objects. It applies alignedclock, awaitstorage
// and uncached, as far as they are switched on.
type Storage struct {
	deviations.Switches
	// SingleServer means that no other API server uses the datastore. Only then can a type do
	// without a watch cache.
	SingleServer bool
	// WatchCacheSizes is --watch-cache-sizes. A type that it names keeps its cache.
	WatchCacheSizes []string
}

// Change wraps servers, the REST options getters of the chain's servers. custom is one of
// them: the getter for custom resources.
func (s Storage) Change(custom *generic.RESTOptionsGetter, servers ...*generic.RESTOptionsGetter) error {
	uncached := map[schema.GroupResource]bool{}
	if s.SingleServer && s.On(deviations.Uncached) {
		named, err := genericoptions.ParseWatchCacheSizes(s.WatchCacheSizes)
		if err != nil {
			return fmt.Errorf("--watch-cache-sizes: %w", err)
		}
		for _, resource := range handful {
			_, has := named[resource]
			uncached[resource] = !has
		}
	}
	for _, getter := range servers {
		*getter = restOptions{*getter, s, uncached, getter == custom}
	}
	return nil
}

// restOptions are upstream's options for a resource, with another decorator.
type restOptions struct {
	generic.RESTOptionsGetter
	Storage
	uncached map[schema.GroupResource]bool
	custom   bool
}

func (o restOptions) GetRESTOptions(resource schema.GroupResource, example apiruntime.Object) (generic.RESTOptions, error) {
	options, err := o.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return options, err
	}
	switch {
	case isUpstreamsCacher(options.Decorator) && o.uncached[resource], isUpstreamsUncached(options.Decorator) && o.On(deviations.Uncached):
		options.Decorator = uncachedStorage
	case isUpstreamsCacher(options.Decorator) && o.On(deviations.AlignedClock):
		options.Decorator = alignedCacher
	}
	if o.custom && o.On(deviations.AwaitStorage) {
		options.Decorator = await(options.Decorator)
	}
	return options, nil
}
