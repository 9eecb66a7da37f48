package replacements

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	cacherstorage "k8s.io/apiserver/pkg/storage/cacher"
	etcd3metrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/karve-k8s/karve/internal/eventually"
)

// A field that upstream adds is one to fill in (alignedCacher).
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

// upstreamsOptions are a getter of upstream's, as an API server has it.
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
	storage := Storage{Stored: func(string, schema.GroupResource) {}}
	getter := restOptions{upstreamsOptions("events#0"), storage, map[schema.GroupResource]bool{roles: true}, false}
	for resource, want := range map[schema.GroupResource]generic.StorageDecorator{pods: alignedCacher, roles: uncachedStorage, events: uncachedStorage} {
		theirs, err := getter.RESTOptionsGetter.GetRESTOptions(resource, nil)
		if err != nil {
			t.Fatal(err)
		}
		if cached := isUpstreamsCacher(theirs.Decorator); cached != (resource != events) {
			t.Errorf("%s: upstream's cache is recognised: %v", resource, cached)
		}
		if theirs.CountMetricPollPeriod != time.Minute {
			t.Errorf("%s: upstream counts every %v", resource, theirs.CountMetricPollPeriod)
		}
		ours, err := getter.GetRESTOptions(resource, nil)
		if err != nil {
			t.Fatal(err)
		}
		if ours.CountMetricPollPeriod != 0 {
			t.Errorf("%s: upstream's Store counts every %v, as we do", resource, ours.CountMetricPollPeriod)
		}
		if same(ours.Decorator, want) {
			t.Errorf("%s: is not counted", resource)
		}
		if ours, err = (restOptions{withoutCount{getter.RESTOptionsGetter}, storage, getter.uncached, false}).GetRESTOptions(resource, nil); err != nil {
			t.Fatal(err)
		}
		if !same(ours.Decorator, want) {
			t.Errorf("%s: got another decorator than expected", resource)
		}
	}
}

// withoutCount is --etcd-count-metric-poll-period=0.
type withoutCount struct{ generic.RESTOptionsGetter }

func (w withoutCount) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := w.RESTOptionsGetter.GetRESTOptions(resource, example)
	options.CountMetricPollPeriod = 0
	return options, err
}

// The timers of caches meet, and are no later than upstream's latest.
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

// countedStorage has objects to count.
type countedStorage struct {
	storage.Interface
	objects atomic.Int64 // negative: an error
}

func (s *countedStorage) Stats(context.Context) (storage.Stats, error) {
	n := s.objects.Load()
	if n < 0 {
		return storage.Stats{}, errors.New("down")
	}
	return storage.Stats{ObjectCount: n, EstimatedAverageObjectSizeBytes: 10}, nil
}

type tracker struct{ objects atomic.Int64 }

func (t *tracker) Set(_ string, stats storage.Stats)         { t.objects.Store(stats.ObjectCount) }
func (t *tracker) Get(string) (stats storage.Stats, _ error) { return stats, nil }
func (t *tracker) RunUntil(<-chan struct{})                  {}

// Objects are counted at once and again and again, as upstream's Store does it, until
// the storage is destroyed.
func TestCount(t *testing.T) {
	etcd3metrics.Register()
	store, tracked := &countedStorage{}, &tracker{}
	store.objects.Store(3)
	destroyed := 0
	raw := func(*storagebackend.ConfigForResource, string, func(runtime.Object) (string, error), func() runtime.Object, func() runtime.Object,
		storage.AttrFunc, storage.IndexerFuncs, *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		return store, func() { destroyed++ }, nil
	}
	resource := schema.GroupResource{Group: "count.test", Resource: "things"}
	_, destroy, err := count(raw, resource, time.Millisecond, tracked)(nil, "", nil, nil, nil, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	metric := func() (float64, bool) {
		families, err := legacyregistry.DefaultGatherer.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				for _, label := range m.GetLabel() {
					if f.GetName() == "apiserver_resource_objects" && label.GetValue() == resource.Group {
						return m.GetGauge().GetValue(), true
					}
				}
			}
		}
		return 0, false
	}
	want := func(v float64, there bool) {
		t.Helper()
		eventually.Nil(t, "apiserver_resource_objects", func() error {
			if got, is := metric(); got != v || is != there {
				return fmt.Errorf("got %v (there: %v), want %v (%v)", got, is, v, there)
			}
			return nil
		})
	}
	want(3, true)
	if n := tracked.objects.Load(); n != 3 {
		t.Errorf("flow control knows of %d objects, want 3", n)
	}
	store.objects.Store(5)
	want(5, true)
	store.objects.Store(-1)
	want(-1, true)
	if n := tracked.objects.Load(); n != 3 && n != 5 {
		t.Errorf("flow control knows of %d objects, want those of before the error", n)
	}
	destroy()
	destroy()
	want(0, false)
	if destroyed != 1 {
		t.Errorf("storage was destroyed %d times, want once", destroyed)
	}
}
