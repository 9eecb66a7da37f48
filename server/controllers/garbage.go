package controllers

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
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
)

const (
	// kindsPeriod is upstream's: how often its garbage collector looks for new kinds.
	kindsPeriod = 30 * time.Second
	// kindsPause is between two looks of upstream's loop, and how long it waits
	// for the objects of new kinds before it says that it goes on without.
	kindsPause = time.Second
	// After a definition has changed discovery, which follows, is looked at so soon,
	// and more and more rarely, for so long.
	kindsFirstLook = 50 * time.Millisecond
	kindsLooks     = 5 * time.Second
)

// garbageController is upstream's garbage collector as newGarbageCollectorController
// of cmd/kube-controller-manager/app makes it, but for when it looks for new kinds.
// Upstream does so every 30 seconds; what a custom resource owns, and custom
// resources that are owned, stay that long when their definition is new. A change
// of a CustomResourceDefinition makes this one look, too.
type garbageController struct {
	*garbagecollector.GarbageCollector
	kinds   *kinds
	workers int
}

// newGarbageController answers nil if there is to be no garbage collection.
func newGarbageController(ctx context.Context, shared app.ControllerContext) (app.Controller, error) {
	options := shared.ComponentConfig.GarbageCollectorController
	if !options.EnableGarbageCollector {
		return nil, nil
	}
	const identity = "generic-garbage-collector"
	client, err := shared.NewClient(identity)
	if err != nil {
		return nil, fmt.Errorf("create client for garbage collector: %w", err)
	}
	served, err := shared.ClientBuilder.DiscoveryClient(identity)
	if err != nil {
		return nil, fmt.Errorf("create discovery client for garbage collector: %w", err)
	}
	config, err := shared.NewClientConfig(identity)
	if err != nil {
		return nil, err
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client for garbage collector: %w", err)
	}
	collector, err := garbagecollector.NewComposedGarbageCollector(ctx, client, objects, shared.RESTMapper, shared.GraphBuilder)
	if err != nil {
		return nil, fmt.Errorf("create garbage collector: %w", err)
	}
	kinds := &kinds{ServerResourcesInterface: served, changed: make(chan struct{}, 1)}
	// The collector watches the definitions' metadata as it does everything's; this
	// is the same informer.
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
	return garbageController{collector, kinds, int(options.ConcurrentGCSyncs)}, nil
}

// rememberNoAbsentOwners makes garbage collection ask the API server for each owner that it
// does not know. Upstream remembers the last 500 that were not there, by their uids, which
// are never there again; but a reset makes objects again as they were. Their dependents
// would be deleted. Workers must be at rest.
func rememberNoAbsentOwners(graph *garbagecollector.GraphBuilder) {
	_, _, absent := graph.GetGraphResources()
	*absent = *garbagecollector.NewReferenceCache(rememberNothing)
}

// rememberNothing is a size of an LRU cache that drops at once what is added to it; zero
// would be one without a limit.
const rememberNothing = -1

func (garbageController) Name() string { return names.GarbageCollectorController }

func (c garbageController) Run(ctx context.Context) {
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() { c.GarbageCollector.Run(ctx, c.workers, kindsPeriod) })
	c.kinds.ctx = ctx
	c.Sync(ctx, c.kinds, kindsPause)
}

// kinds is discovery for upstream's loop, which asks it what there is: it answers
// after 30 seconds, or when that has changed after a definition has.
type kinds struct {
	discovery.ServerResourcesInterface
	ctx     context.Context // ends the wait before an answer
	asked   bool
	known   map[schema.GroupVersionResource]struct{}
	last    atomic.Pointer[time.Time] // when a definition has changed
	changed chan struct{}             // wakes who waits
}

func (k *kinds) change() {
	now := time.Now()
	k.last.Store(&now)
	select {
	case k.changed <- struct{}{}:
	default: // it is awake
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
		if last := k.last.Load(); last != nil && time.Since(*last) < kindsLooks {
			// As long again as it is ago, so the looks become rarer.
			pause = max(time.Since(*last), kindsFirstLook)
			if pause == kindsFirstLook {
				changed = nil // or changes without an end would put the look off for ever
			}
		}
		select {
		case <-k.ctx.Done():
			return
		case <-changed:
			continue
		case <-time.After(pause):
		}
		if !time.Now().Before(end) || k.look() {
			return
		}
	}
}

// look answers whether discovery has changed since the last look.
func (k *kinds) look() bool {
	now, _ := garbagecollector.GetDeletableResources(klog.FromContext(k.ctx), k.ServerResourcesInterface)
	if len(now) == 0 || reflect.DeepEqual(now, k.known) {
		return false
	}
	k.known = now
	return true
}
