package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/namespace/deletion"
)

// How long the namespace controller waits for those that may still make something in a
// namespace that was deleted, and after it has found something that is still going.
//
// Upstream waits five seconds, for the caches of other API servers and for etcd's
// followers (namespaceDeletionGracePeriod in pkg/controller/namespace), and hopes that
// requests admitted before the deletion are through. There are no others here: the API
// server refuses what is new from the moment it has marked the namespace, and the requests
// before that are known; see Writes. Where somebody else may let something in later,
// upstream's time holds.
const (
	namespaceUpstreamGrace = 5 * time.Second
	namespaceWrites        = time.Second           // for the engine; then the worker looks after another
	namespaceRetry         = 50 * time.Millisecond // doubled each time
	namespaceRetryLimit    = time.Minute
)

// Writes tells which writes were admitted to a namespace.
type Writes struct {
	// Requests returns a channel that is closed when the handlers of the writes under way
	// have returned, or their time is over.
	Requests func(namespace string) <-chan struct{}
	// Engine returns when every write that such a handler left with the engine is durable
	// or has failed.
	Engine func(context.Context) error
}

// settling is the wait for the writes that were admitted to a namespace before its
// deletion. The set of requests is taken once, so later ones cannot prolong the wait.
type settling struct {
	requests <-chan struct{}
	settled  bool
}

// othersAdmit are resources of which one object is enough for upstream's grace:
// API servers of the user's see the deletion when their own caches do, and a
// webhook may hold back a request that has been found to be in time.
var othersAdmit = []struct {
	schema.GroupVersionResource
	but string // a label selector
}{
	{apiregistrationv1.SchemeGroupVersion.WithResource("apiservices"), "!" + autoregister.AutoRegisterManagedLabel},
	{admissionregistrationv1.SchemeGroupVersion.WithResource("mutatingwebhookconfigurations"), ""},
	{admissionregistrationv1.SchemeGroupVersion.WithResource("validatingwebhookconfigurations"), ""},
}

// namespaceController empties namespaces that are being deleted, and lets them
// go. What that takes is upstream's (package deletion); when it is tried is not.
type namespaceController struct {
	informer cache.SharedIndexInformer
	contents metadata.Interface
	deleter  deletion.NamespacedResourcesDeleterInterface
	queue    workqueue.TypedDelayingInterface[string]
	retry    workqueue.TypedRateLimiter[string]
	workers  int
	writes   *Writes

	mu       sync.Mutex
	settling map[types.UID]*settling // of namespaces in the informer's store
}

func newNamespaceController(ctx context.Context, shared app.ControllerContext, writes *Writes) (app.Controller, error) {
	config, err := shared.NewClientConfig("namespace-controller")
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client for namespace controller: %w", err)
	}
	contents, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client for namespace controller: %w", err)
	}
	options := shared.ComponentConfig.NamespaceController
	c := &namespaceController{
		informer: shared.InformerFactory.Core().V1().Namespaces().Informer(),
		contents: contents,
		deleter: deletion.NewNamespacedResourcesDeleter(ctx, client.CoreV1().Namespaces(), contents, client.CoreV1(),
			client.Discovery().ServerPreferredNamespacedResources, corev1.FinalizerKubernetes),
		queue:    workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Name: "namespace"}),
		retry:    workqueue.NewTypedItemExponentialFailureRateLimiter[string](namespaceRetry, namespaceRetryLimit),
		workers:  int(options.ConcurrentNamespaceSyncs),
		writes:   writes,
		settling: map[types.UID]*settling{},
	}
	_, err = c.informer.AddEventHandlerWithResyncPeriod(cache.ResourceEventHandlerFuncs{
		AddFunc: c.changed,
		UpdateFunc: func(old, now any) {
			if old.(*corev1.Namespace).UID != now.(*corev1.Namespace).UID {
				c.gone(old) // a new list may show another namespace of the name
			}
			c.changed(now)
		},
		DeleteFunc: c.gone,
	}, options.NamespaceSyncPeriod.Duration)
	if err != nil {
		return nil, fmt.Errorf("watch namespaces: %w", err)
	}
	return c, nil
}

func (*namespaceController) Name() string { return names.NamespaceController }

func (c *namespaceController) changed(object any) {
	if ns := object.(*corev1.Namespace); !ns.DeletionTimestamp.IsZero() {
		c.queue.Add(ns.Name)
	}
}

func (c *namespaceController) gone(object any) {
	if unseen, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unseen.Obj
	}
	if ns, ok := object.(*corev1.Namespace); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.settling, ns.UID)
	}
}

// settles reports whether no object can appear in a namespace any more by a request that
// was admitted before its deletion. If not, it returns when to ask again, 0 for when the
// name is in the queue again: it is added when the requests have ended.
func (c *namespaceController) settles(ctx context.Context, ns *corev1.Namespace) (bool, time.Duration) {
	if ns.DeletionTimestamp.IsZero() {
		return true, 0
	}
	now := c.settlingOf(ctx, ns)
	if now == nil {
		return false, 0 // it has gone
	}
	select {
	case <-now.requests:
	default:
		return false, 0
	}
	c.mu.Lock()
	settled := now.settled
	c.mu.Unlock()
	if settled {
		return true, 0
	}
	limited, cancel := context.WithTimeout(ctx, namespaceWrites)
	defer cancel()
	if err := c.writes.Engine(limited); err != nil {
		klog.FromContext(ctx).V(2).Info("Namespace waits for the datastore", "namespace", ns.Name, "err", err)
		return false, namespaceWrites
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now.settled = true
	return true, 0
}

// settlingOf begins the wait for a namespace, once, nil if the namespace has gone. The
// informer that this controller shares with admission shows the deletion, so no request
// that is not in the set will be admitted.
func (c *namespaceController) settlingOf(ctx context.Context, ns *corev1.Namespace) *settling {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.settling[ns.UID]; now != nil {
		return now
	}
	// The store forgets a namespace before gone is called, which then waits for the mutex:
	// nothing is kept for a namespace that has gone.
	stored, exists, _ := c.informer.GetStore().GetByKey(ns.Name)
	if !exists || stored.(*corev1.Namespace).UID != ns.UID {
		return nil
	}
	now := &settling{requests: c.writes.Requests(ns.Name)}
	c.settling[ns.UID] = now
	select {
	case <-now.requests:
	default:
		go func() {
			select {
			case <-now.requests:
				c.queue.Add(ns.Name)
			case <-ctx.Done():
			}
		}()
	}
	return now
}

func (c *namespaceController) Run(ctx context.Context) {
	var workers sync.WaitGroup
	defer workers.Wait()
	defer c.queue.ShutDown()
	if !cache.WaitForCacheSync(ctx.Done(), c.informer.HasSynced) {
		return
	}
	for range c.workers {
		workers.Go(func() {
			for c.next(ctx) {
			}
		})
	}
	<-ctx.Done()
}

// next empties one namespace, and comes back to it as long as there is
// something left: soon at first, because finalizers are a matter of
// milliseconds, and in the end when upstream would.
func (c *namespaceController) next(ctx context.Context) bool {
	name, quit := c.queue.Get()
	if quit {
		return false
	}
	defer c.queue.Done(name)
	again := c.empty(ctx, name)
	if again == 0 {
		c.retry.Forget(name)
	} else {
		c.queue.AddAfter(name, again)
	}
	return true
}

// empty returns when to look again, 0 for when the name is in the queue again.
func (c *namespaceController) empty(ctx context.Context, name string) time.Duration {
	ns, exists, _ := c.informer.GetStore().GetByKey(name)
	if !exists {
		return 0
	}
	if early := c.early(ctx, ns.(*corev1.Namespace)); early > 0 {
		return early
	}
	if settled, again := c.settles(ctx, ns.(*corev1.Namespace)); !settled {
		return again
	}
	err := c.deleter.Delete(ctx, name)
	if err == nil {
		return 0
	}
	soon := c.retry.When(name)
	var remaining *deletion.ResourcesRemainingError
	if errors.As(err, &remaining) {
		return min(soon, time.Duration(remaining.Estimate/2+1)*time.Second) // the latter is upstream's
	}
	klog.FromContext(ctx).Error(err, "Deletion of namespace failed", "namespace", name)
	return soon
}

// early returns how much of upstream's grace is left to a namespace, where that is
// the one that holds.
func (c *namespaceController) early(ctx context.Context, ns *corev1.Namespace) time.Duration {
	if ns.DeletionTimestamp.IsZero() {
		return 0
	}
	// The time of the deletion is in whole seconds, cut off.
	const most = time.Second + namespaceUpstreamGrace
	left := min(time.Until(ns.DeletionTimestamp.Add(most)), most) // the clock may have been set back
	if left <= 0 {
		return 0
	}
	for _, r := range othersAdmit {
		one, err := c.contents.Resource(r.GroupVersionResource).List(ctx, metav1.ListOptions{Limit: 1, LabelSelector: r.but, ResourceVersion: "0"})
		if apierrors.IsNotFound(err) {
			continue // not served here
		}
		if err != nil || len(one.Items) > 0 {
			return left
		}
	}
	return 0
}
