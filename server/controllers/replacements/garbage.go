package replacements

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/controller-manager/pkg/clientbuilder"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	controllerconfig "k8s.io/kubernetes/cmd/kube-controller-manager/app/config"
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

// Garbage is the graph of upstream's garbage collector, with the informers that it was made with.
type Garbage struct {
	graph     *garbagecollector.GraphBuilder
	informers *leaving
}

// CreateContext is upstream's CreateControllerContext (cmd/kube-controller-manager/app). With own, it makes the graph
// of the garbage collector itself, if there is one.
func CreateContext(ctx context.Context, config *controllerconfig.CompletedConfig, root, clients clientbuilder.ControllerClientBuilder, own bool) (app.ControllerContext, *Garbage, error) {
	collects := &config.ComponentConfig.GarbageCollectorController.EnableGarbageCollector
	own = own && *collects
	*collects = *collects && !own
	shared, err := app.CreateControllerContext(ctx, config, root, clients)
	if !own || err != nil {
		return shared, nil, err
	}
	*collects, shared.ComponentConfig.GarbageCollectorController.EnableGarbageCollector = true, true
	if !shared.IsControllerEnabled(app.NewControllerDescriptors()[names.GarbageCollectorController]) {
		return shared, nil, nil
	}
	client, err := root.Config("metadata-informers")
	if err != nil {
		return shared, nil, err
	}
	objects, err := metadata.NewForConfig(client)
	if err != nil {
		return shared, nil, fmt.Errorf("create client for garbage collector: %w", err)
	}
	ignored := map[schema.GroupResource]struct{}{}
	for _, r := range shared.ComponentConfig.GarbageCollectorController.GCIgnoredResources {
		ignored[schema.GroupResource{Group: r.Group, Resource: r.Resource}] = struct{}{}
	}
	g := &Garbage{informers: &leaving{InformerFactory: shared.ObjectOrMetadataInformerFactory, handlers: map[schema.GroupVersionResource]*kindHandler{}}}
	g.graph = garbagecollector.NewDependencyGraphBuilder(ctx, objects, shared.RESTMapper, ignored, g.informers, shared.InformersStarted)
	shared.GraphBuilder = g.graph
	return shared, g, nil
}

// Collector returns the garbage collector of the graph.
func (g *Garbage) Collector(ctx context.Context, shared app.ControllerContext) (Controller, error) {
	const identity = "generic-garbage-collector"
	client, err := shared.ClientBuilder.Client(identity)
	if err != nil {
		return nil, fmt.Errorf("create client for garbage collector: %w", err)
	}
	served, err := shared.ClientBuilder.DiscoveryClient(identity)
	if err != nil {
		return nil, fmt.Errorf("create discovery client for garbage collector: %w", err)
	}
	config, err := shared.ClientBuilder.Config(identity)
	if err != nil {
		return nil, err
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client for garbage collector: %w", err)
	}
	collector, err := garbagecollector.NewComposedGarbageCollector(ctx, client, objects, shared.RESTMapper, g.graph)
	if err != nil {
		return nil, fmt.Errorf("create garbage collector: %w", err)
	}
	kinds := &kinds{ServerResourcesInterface: served, informers: g.informers, changed: make(chan struct{}, 1)}
	// The collector watches the metadata of all objects, so it has this informer already.
	definitions, err := shared.ObjectOrMetadataInformerFactory.ForResource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
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
	return garbageController{collector, kinds, int(shared.ComponentConfig.GarbageCollectorController.ConcurrentGCSyncs)}, nil
}

// RememberNoAbsentOwners makes the garbage collector ask the API server for each owner that it
// does not know. Upstream remembers the UIDs of the last 500 absent owners, because a UID is
// never used again. But a reset creates objects again with their UIDs, and the collector would
// delete their dependents. A worker that runs during the call may use either cache. To remember none
// from the start would cost a tenth of the CPU of deleting a Deployment.
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
	informers *leaving
	ctx       context.Context // ends the wait before an answer
	asked     bool
	known     map[schema.GroupVersionResource]struct{}
	last      atomic.Pointer[time.Time] // when a definition changed
	changed   chan struct{}             // wakes wait
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
	lists, err := k.ServerResourcesInterface.ServerPreferredResources()
	if served, wrong := discovery.GroupVersionResources(lists); err == nil && wrong == nil {
		k.informers.forget(served)
	}
	return lists, err
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
	current, err := garbagecollector.GetDeletableResources(k.ctx, discovery.ToServerResourcesInterfaceWithContext(k.ServerResourcesInterface))
	if err == nil { // otherwise upstream goes on with kinds that are missing
		k.informers.forget(current)
	}
	if len(current) == 0 || reflect.DeepEqual(current, k.known) {
		return false
	}
	k.known = current
	return true
}

// leaving makes the informers of the graph. Upstream's graph adds a handler to the informer of each kind that it meets,
// and leaves it there when the kind goes: two goroutines, and for a kind that comes back one more event for each.
type leaving struct {
	informerfactory.InformerFactory

	mu       sync.Mutex
	handlers map[schema.GroupVersionResource]*kindHandler
}

type kindHandler struct {
	remove func()
	gone   time.Time // since when discovery does not have the kind
}

// ForResource implements [informerfactory.InformerFactory].
func (l *leaving) ForResource(kind schema.GroupVersionResource) (informers.GenericInformer, error) {
	generic, err := l.InformerFactory.ForResource(kind)
	return leavingGeneric{generic, l, kind}, err
}

// forget removes the handlers of kinds that have been gone long enough for their last events to be through.
func (l *leaving) forget(served map[schema.GroupVersionResource]struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for kind, h := range l.handlers {
		switch _, there := served[kind]; {
		case there:
			h.gone = time.Time{}
		case h.gone.IsZero():
			h.gone = time.Now()
		case time.Since(h.gone) >= kindsPause:
			h.remove()
			delete(l.handlers, kind)
		}
	}
}

type leavingGeneric struct {
	informers.GenericInformer
	all  *leaving
	kind schema.GroupVersionResource
}

func (g leavingGeneric) Informer() cache.SharedIndexInformer {
	return leavingInformer{g.GenericInformer.Informer(), g}
}

type leavingInformer struct {
	cache.SharedIndexInformer
	of leavingGeneric
}

func (i leavingInformer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, every time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(h, cache.HandlerOptions{ResyncPeriod: &every})
}

// AddEventHandlerWithOptions is what the graph calls for a kind that it has no handler for, or none any more; before 1.38, it calls AddEventHandlerWithResyncPeriod.
func (i leavingInformer) AddEventHandlerWithOptions(h cache.ResourceEventHandler, o cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	added, err := i.SharedIndexInformer.AddEventHandlerWithOptions(h, o)
	if err != nil {
		return nil, err
	}
	all := i.of.all
	all.mu.Lock()
	defer all.mu.Unlock()
	if before := all.handlers[i.of.kind]; before != nil {
		before.remove()
	}
	all.handlers[i.of.kind] = &kindHandler{remove: func() { _ = i.RemoveEventHandler(added) }}
	return added, nil
}
