package replacements

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
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/controller-manager/pkg/clientbuilder"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/namespace/deletion"

	"github.com/karve-k8s/karve/internal/panics"
)

// How long the namespace controller waits before it empties a deleted namespace, and before it
// checks again for objects that are still there.
//
// Upstream waits five seconds (namespaceDeletionGracePeriod in pkg/controller/namespace) for
// the caches of other API servers and for etcd's followers. It expects that requests which
// were admitted before the deletion have ended by then. Here, one API server refuses new
// objects as soon as its own informer shows the deletion, and Writes tells which requests were
// admitted before. If other servers or webhooks may admit something later, upstream's grace
// period applies: see othersAdmit.
const (
	namespaceUpstreamGrace = 5 * time.Second
	namespaceWrites        = time.Second           // for the engine; then the worker takes another namespace
	namespaceAdmission     = 10 * time.Millisecond // until the API server's informer is asked again
	namespaceRetry         = 50 * time.Millisecond // doubled with each attempt
	namespaceRetryLimit    = time.Minute
)

// Writes tells which writes were admitted to a namespace.
type Writes struct {
	// Admission has the namespaces as the API server's admission sees them: the store of its informer, which
	// is another one than the controller's.
	Admission cache.Store
	// Requests returns a channel that is closed when the handlers of the writes in progress
	// have returned, or their time is over.
	Requests func(namespace string) <-chan struct{}
	// Engine returns when every write that such a handler left with the engine is durable
	// or has failed.
	Engine func(context.Context) error
}

// settling is the wait for the writes that were admitted to a namespace before its
// deletion. The set of requests is taken once, so later ones cannot prolong the wait. A reset may take a
// deletion back: the next deletion of the same namespace waits again.
type settling struct {
	deletion metav1.Time // of the namespace
	requests <-chan struct{}
	settled  bool
}

// othersAdmit are the resources that make upstream's grace period apply if a single object of
// them exists. An aggregated API server sees the deletion only when its cache does. A webhook
// can delay a request that was admitted in time.
var othersAdmit = []struct {
	schema.GroupVersionResource
	selector string // a label selector
}{
	{apiregistrationv1.SchemeGroupVersion.WithResource("apiservices"), "!" + autoregister.AutoRegisterManagedLabel},
	{admissionregistrationv1.SchemeGroupVersion.WithResource("mutatingwebhookconfigurations"), ""},
	{admissionregistrationv1.SchemeGroupVersion.WithResource("validatingwebhookconfigurations"), ""},
}

// namespaceController empties namespaces that are being deleted, and finalizes them.
// Upstream's package deletion does both; the controller differs from upstream's only in when
// it calls that package.
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

// NewNamespaceController returns a namespace controller whose deletions wait for writes. It handles
// each namespace again after resync.
func NewNamespaceController(ctx context.Context, clients clientbuilder.ControllerClientBuilder, namespaces cache.SharedIndexInformer, writes *Writes, workers int, resync time.Duration) (Controller, error) {
	config, err := clients.Config("namespace-controller")
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
	c := &namespaceController{
		informer: namespaces,
		contents: contents,
		deleter: deletion.NewNamespacedResourcesDeleter(ctx, client.CoreV1().Namespaces(), contents, client.CoreV1(),
			client.Discovery().ServerPreferredNamespacedResources, corev1.FinalizerKubernetes),
		queue:    workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Name: "namespace"}),
		retry:    workqueue.NewTypedItemExponentialFailureRateLimiter[string](namespaceRetry, namespaceRetryLimit),
		workers:  workers,
		writes:   writes,
		settling: map[types.UID]*settling{},
	}
	_, err = c.informer.AddEventHandlerWithResyncPeriod(cache.ResourceEventHandlerFuncs{
		AddFunc:    c.changed,
		UpdateFunc: c.updated,
		DeleteFunc: c.gone,
	}, resync)
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

func (c *namespaceController) updated(old, current any) {
	// After a new list, the name may be that of another namespace, or the deletion another one.
	if !sameDeletion(old.(*corev1.Namespace), current.(*corev1.Namespace)) {
		c.gone(old)
	}
	c.changed(current)
}

// sameDeletion reports whether two versions of a namespace are of the same one, and of the same attempt to
// delete it.
func sameDeletion(a, b *corev1.Namespace) bool {
	return a.UID == b.UID && a.DeletionTimestamp.Equal(b.DeletionTimestamp)
}

// gone forgets the wait for a namespace that has gone, or whose deletion was taken back.
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

// settles reports whether every request that was admitted before the deletion of ns has ended,
// so that no more objects can appear in it. If not, it returns when to ask again. 0 means that
// the name will be added to the queue again when the requests have ended.
func (c *namespaceController) settles(ctx context.Context, ns *corev1.Namespace) (bool, time.Duration) {
	if ns.DeletionTimestamp.IsZero() {
		return true, 0
	}
	wait := c.settlingOf(ctx, ns)
	if wait == nil {
		return false, namespaceAdmission
	}
	select {
	case <-wait.requests:
	default:
		return false, 0
	}
	c.mu.Lock()
	settled := wait.settled
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
	wait.settled = true
	return true, 0
}

// settlingOf returns the wait for ns, which the first call begins. It returns nil if it cannot begin yet: the
// namespace has changed, or admission does not see the deletion. Once admission does, no request that is
// not in the set will be admitted.
func (c *namespaceController) settlingOf(ctx context.Context, ns *corev1.Namespace) *settling {
	c.mu.Lock()
	defer c.mu.Unlock()
	if wait := c.settling[ns.UID]; wait != nil && wait.deletion.Equal(ns.DeletionTimestamp) {
		return wait
	}
	// The store changes before gone is called, and gone waits for the mutex. So no entry is added after gone
	// has removed it.
	stored, exists, _ := c.informer.GetStore().GetByKey(ns.Name)
	if !exists || !sameDeletion(stored.(*corev1.Namespace), ns) || !c.refused(ns) {
		return nil
	}
	wait := &settling{deletion: *ns.DeletionTimestamp, requests: c.writes.Requests(ns.Name)}
	c.settling[ns.UID] = wait
	select {
	case <-wait.requests:
	default:
		go func() {
			select {
			case <-wait.requests:
				c.queue.Add(ns.Name)
			case <-ctx.Done():
			}
		}()
	}
	return wait
}

// refused reports whether admission refuses new objects in ns: NamespaceLifecycle goes by the phase, in the
// version that the API server's informer has. That version must be as new as ns, because a reset may
// have taken an earlier deletion back.
func (c *namespaceController) refused(ns *corev1.Namespace) bool {
	object, exists, _ := c.writes.Admission.GetByKey(ns.Name)
	seen, ok := object.(*corev1.Namespace)
	if !exists || !ok || seen.UID != ns.UID || seen.Status.Phase != corev1.NamespaceTerminating {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(seen.ResourceVersion, ns.ResourceVersion)
	return err == nil && order >= 0
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

// next empties one namespace, and queues it again while objects are left in it. The first
// retries are early, because finalizers take milliseconds; later ones come when upstream's
// would.
func (c *namespaceController) next(ctx context.Context) bool {
	name, quit := c.queue.Get()
	if quit {
		return false
	}
	defer c.queue.Done(name)
	var again time.Duration
	if err := panics.Catch(func() error { again = c.empty(ctx, name); return nil }); err != nil {
		klog.FromContext(ctx).Error(err, "Deletion of namespace failed", "namespace", name)
		again = c.retry.When(name)
	}
	if again == 0 {
		c.retry.Forget(name)
	} else {
		c.queue.AddAfter(name, again)
	}
	return true
}

// empty returns when to try again. 0 means that the queue has the name again.
func (c *namespaceController) empty(ctx context.Context, name string) time.Duration {
	ns, exists, _ := c.informer.GetStore().GetByKey(name)
	if !exists {
		return 0
	}
	if left := c.graceLeft(ctx, ns.(*corev1.Namespace)); left > 0 {
		return left
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
		return min(soon, time.Duration(remaining.Estimate/2+1)*time.Second) // the second is upstream's interval
	}
	klog.FromContext(ctx).Error(err, "Deletion of namespace failed", "namespace", name)
	return soon
}

// graceLeft returns what is left of upstream's grace period, or 0 if it does not apply.
func (c *namespaceController) graceLeft(ctx context.Context, ns *corev1.Namespace) time.Duration {
	if ns.DeletionTimestamp.IsZero() {
		return 0
	}
	// The deletion timestamp is rounded down to seconds.
	const longest = time.Second + namespaceUpstreamGrace
	left := min(time.Until(ns.DeletionTimestamp.Add(longest)), longest) // the clock may have been set back
	if left <= 0 {
		return 0
	}
	for _, r := range othersAdmit {
		one, err := c.contents.Resource(r.GroupVersionResource).List(ctx, metav1.ListOptions{Limit: 1, LabelSelector: r.selector, ResourceVersion: "0"})
		if apierrors.IsNotFound(err) {
			continue // not served here
		}
		if err != nil || len(one.Items) > 0 {
			return left
		}
	}
	return 0
}
