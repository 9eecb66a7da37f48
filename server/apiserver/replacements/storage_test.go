package replacements

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	cacherstorage "k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/util/watchlist"
	"k8s.io/kubernetes/pkg/apis/core"
)

// alignedCacher has to set every field of upstream's configuration, so the test fails if
// upstream adds one.
func TestCacherConfigIsUpstreams(t *testing.T) {
	known := map[string]bool{"Storage": true, "Versioner": true, "GroupResource": true, "EventsHistoryWindow": true, "ResourcePrefix": true, "KeyFunc": true,
		"NewFunc": true, "NewListFunc": true, "GetAttrsFunc": true, "IndexerFuncs": true, "Indexers": true, "Codec": true, "Clock": true}
	config := reflect.TypeFor[cacherstorage.Config]()
	for i := range config.NumField() {
		if !known[config.Field(i).Name] {
			t.Errorf("cacher.Config has the new field %s: see what StorageWithCacher fills in", config.Field(i).Name)
		}
		delete(known, config.Field(i).Name)
	}
	for name := range known {
		t.Errorf("cacher.Config no longer has the field %s", name)
	}
}

// Upstream's reflector lists to fill the cache of a built-in type, and watches for that of a custom resource.
func TestCachesOfBuiltInTypesAreFilledWithLists(t *testing.T) {
	for _, object := range []runtime.Object{&core.ConfigMap{}, &unstructured.Unstructured{}} {
		_, custom := object.(*unstructured.Unstructured)
		var store struct{ storage.Interface }
		lw := cacherstorage.NewListerWatcher(filledFrom(store, object), "/registry/things/", nil, nil)
		if lists := watchlist.DoesClientNotSupportWatchListSemantics(lw); lists == custom {
			t.Errorf("%T: the cache is filled with lists: %v", object, lists)
		}
	}
}

// upstreamsOptions returns upstream's getter as an API server has it.
func upstreamsOptions(sizes ...string) generic.RESTOptionsGetter {
	options := genericoptions.NewEtcdOptions(storagebackend.NewDefaultConfig("/registry", nil))
	options.WatchCacheSizes = sizes
	return options.CreateRESTOptionsGetter(&genericoptions.SimpleStorageFactory{StorageConfig: options.StorageConfig}, nil)
}

func TestDecorators(t *testing.T) {
	pods, roles, events := schema.GroupResource{Resource: "pods"}, schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "roles"}, schema.GroupResource{Resource: "events"}
	same := func(a, b generic.StorageDecorator) bool {
		return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
	}
	if !isUpstreamsCacher(genericregistry.StorageWithCacher()) || isUpstreamsCacher(generic.UndecoratedStorage) {
		t.Error("upstream's decorators are not told apart")
	}
	if !isUpstreamsUncached(generic.UndecoratedStorage) || isUpstreamsUncached(genericregistry.StorageWithCacher()) {
		t.Error("upstream's storage without a cache is not recognised")
	}
	theirs := upstreamsOptions("events#0")
	ours := theirs
	if err := WithoutCaches(true, nil, &ours); err != nil {
		t.Fatal(err)
	}
	AlignCaches(&ours)
	for resource, want := range map[schema.GroupResource]generic.StorageDecorator{pods: alignedCacher, roles: uncachedStorage, events: uncachedStorage} {
		before, err1 := theirs.GetRESTOptions(resource, nil)
		after, err2 := ours.GetRESTOptions(resource, nil)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if cached := isUpstreamsCacher(before.Decorator); cached != (resource != events) {
			t.Errorf("%s: upstream's cache is recognised: %v", resource, cached)
		}
		if !same(after.Decorator, want) {
			t.Errorf("%s: got another decorator than expected", resource)
		}
	}
}

// The timers of caches fire on common beats, and no later than upstream's latest.
func TestOnBeat(t *testing.T) {
	start := beatsSince.Add(12345 * time.Microsecond)
	at := map[time.Duration]time.Time{}
	for _, jitter := range []time.Duration{0, 60 * time.Millisecond, 250 * time.Millisecond} {
		now := start.Add(jitter)
		for range 50 {
			d := time.Second + jitter
			wait := onBeat(now, d)
			if wait < 0 || now != start.Add(jitter) && wait > 1250*time.Millisecond {
				t.Fatalf("a timer of %v goes off after %v", d, wait)
			}
			now = now.Add(wait)
		}
		at[jitter] = now
	}
	for jitter, when := range at {
		if off := when.Sub(beatsSince) % beat; off != 0 {
			t.Errorf("with a jitter of %v, the timer is %v off the beat", jitter, off)
		}
	}
	if d := 100 * time.Millisecond; onBeat(start, d) != d {
		t.Error("a short timer was changed")
	}
	timer := alignedClock{}.NewTimer(10 * time.Millisecond)
	<-timer.C()
	timer.Reset(20 * time.Millisecond)
	<-timer.C()
}
