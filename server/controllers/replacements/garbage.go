package replacements

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/controller-manager/pkg/clientbuilder"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
)

const (
	// kindsPeriod is how often upstream's garbage collector asks discovery for new kinds.
	kindsPeriod = 30 * time.Second
	// kindsPause is the pause between two rounds of upstream's loop. It is also how long
	// the loop waits for the objects of new kinds before it logs that it continues without
	// them.
	kindsPause = time.Second
	// Discovery changes some time after a definition has. It is polled first after
	// kindsFirstPoll, then at growing intervals, until kindsPolling has passed.
	kindsFirstPoll = 50 * time.Millisecond
	kindsPolling   = 5 * time.Second
)

// garbageController is upstream's garbage collector. It is built like
// newGarbageCollectorController does (cmd/kube-controller-manager/app), except for when it
// discovers new kinds.
//
// Upstream asks discovery every 30 seconds. Until then, the dependents of custom resources
// whose definition is new are not deleted. This controller also asks discovery when a
// CustomResourceDefinition has changed.
type garbageController struct {
	*garbagecollector.GarbageCollector
	kinds   *kinds
	workers int
}

// NewGarbageCollector returns a garbage collector with the graph and the informers of objects that
// upstream has made.
func NewGarbageCollector(ctx context.Context, clients clientbuilder.ControllerClientBuilder, graph *garbagecollector.GraphBuilder, informers informerfactory.InformerFactory, mapper meta.ResettableRESTMapper, workers int) (Controller, error) {
	const identity = "generic-garbage-collector"
	client, err := clients.Client(identity)
	if err != nil {
		return nil, fmt.Errorf("create client for garbage collector: %w", err)
	}
	served, err := clients.DiscoveryClient(identity)
	if err != nil {
		return nil, fmt.Errorf("create discovery client for garbage collector: %w", err)
	}
	config, err := clients.Config(identity)
	if err != nil {
		return nil, err
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client for garbage collector: %w", err)
	}
	collector, err := garbagecollector.NewComposedGarbageCollector(ctx, client, objects, mapper, graph)
	if err != nil {
		return nil, fmt.Errorf("create garbage collector: %w", err)
	}
	kinds := &kinds{ServerResourcesInterface: served, changed: make(chan struct{}, 1)}
	// The collector watches the metadata of all objects, so it has this informer already.
	definitions, err := informers.ForResource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	if err != nil {
		return nil, fmt.Errorf("watch definitions for garbage collector: %w", err)
	}
	_, err = definitions.Informer().AddEventHandlerWithResyncPeriod(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(_ any, initial bool) {
			if !initial {
				kinds.change()
			}
		},
		UpdateFunc: func(_, _ any) { kinds.change() },
		DeleteFunc: func(any) { kinds.change() },
	}, 0)
	if err != nil {
		return nil, fmt.Errorf("watch definitions for garbage collector: %w", err)
	}
	return garbageController{collector, kinds, workers}, nil
}

// RememberNoAbsentOwners makes the garbage collector ask the API server for each owner that it
// does not know. Upstream remembers the UIDs of the last 500 absent owners, because a UID is
// never used again. But a reset creates objects again with their UIDs, and the collector would
// delete their dependents. No worker may be running during the call.
func RememberNoAbsentOwners(graph *garbagecollector.GraphBuilder) {
	_, _, absent := graph.GetGraphResources()
	*absent = *garbagecollector.NewReferenceCache(rememberNothing)
}

// rememberNothing is the size of an LRU cache that evicts each entry as it is added. Zero
// would mean no limit.
const rememberNothing = -1

func (garbageController) Name() string { return names.GarbageCollectorController }

func (c garbageController) Run(ctx context.Context) {
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() { c.GarbageCollector.Run(ctx, c.workers, kindsPeriod) })
	c.kinds.ctx = ctx
	c.Sync(ctx, c.kinds, kindsPause)
}

// kinds is the discovery client of upstream's loop. Its answer comes after 30 seconds, or
// earlier if a definition has changed and discovery with it.
type kinds struct {
	discovery.ServerResourcesInterface
	ctx     context.Context // ends the wait before an answer
	asked   bool
	known   map[schema.GroupVersionResource]struct{}
	last    atomic.Pointer[time.Time] // when a definition changed
	changed chan struct{}             // wakes wait
}

func (k *kinds) change() {
	now := time.Now()
	k.last.Store(&now)
	select {
	case k.changed <- struct{}{}:
	default: // wait has been woken already
	}
}

// ServerPreferredResources implements discovery.ServerResourcesInterface.
func (k *kinds) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	if k.asked {
		k.wait()
	}
	k.asked = true
	return k.ServerResourcesInterface.ServerPreferredResources()
}

func (k *kinds) wait() {
	for end := time.Now().Add(kindsPeriod); ; {
		pause, changed := time.Until(end), k.changed
		if last := k.last.Load(); last != nil && time.Since(*last) < kindsPolling {
			// The pause is as long as the time since the change, so polls become less
			// frequent.
			pause = max(time.Since(*last), kindsFirstPoll)
			if pause == kindsFirstPoll {
				changed = nil // or a stream of changes would postpone the poll for ever
			}
		}
		select {
		case <-k.ctx.Done():
			return
		case <-changed:
			continue
		case <-time.After(pause):
		}
		if !time.Now().Before(end) || k.poll() {
			return
		}
	}
}

// poll reports whether discovery has changed since the last poll.
func (k *kinds) poll() bool {
	current, _ := garbagecollector.GetDeletableResources(k.ctx, discovery.ToServerResourcesInterfaceWithContext(k.ServerResourcesInterface))
	if len(current) == 0 || reflect.DeepEqual(current, k.known) {
		return false
	}
	k.known = current
	return true
}
