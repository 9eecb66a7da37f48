package replacements

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/internalinterfaces"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
)

// A ReplicaSet hears of its Pods' updates once in this time for each replica that it wants.
const (
	pauseForReplica = 500 * time.Microsecond
	longestPause    = time.Second
)

// PaceReplicaSets returns a factory for upstream's ReplicaSet controller alone. The controller looks at all
// Pods of a ReplicaSet for each update of one, which is quadratic while they are scheduled and start. From
// this factory it hears of the first update at once, and of all that follow within a pause together, at the
// pause's end. The pause is as long as the ReplicaSet is large: 10 ms for 20 replicas, and at most a second.
//
// Only updates are held back after which the controller does nothing but enqueue the ReplicaSet. Creations,
// deletions, and changes of labels or owners count for the controller's expectations, and are heard at once.
func PaceReplicaSets(f informers.SharedInformerFactory) informers.SharedInformerFactory {
	return pacedFactory{f}
}

type pacedFactory struct {
	informers.SharedInformerFactory
}

func (f pacedFactory) Core() core.Interface { return core.New(f, metav1.NamespaceAll, nil) }

// InformerFor is what Core calls for each informer.
func (f pacedFactory) InformerFor(obj runtime.Object, make internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	informer := f.SharedInformerFactory.InformerFor(obj, make)
	if _, ok := obj.(*corev1.Pod); ok {
		return pacedInformer{informer, f.Apps().V1().ReplicaSets().Lister()}
	}
	return informer
}

type pacedInformer struct {
	cache.SharedIndexInformer
	replicaSets appslisters.ReplicaSetLister
}

func (i pacedInformer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandler(&pacedHandler{ResourceEventHandler: h, replicaSets: i.replicaSets, pauses: map[types.UID]*pause{}})
}

// pacedHandler passes on what the controller shall hear now.
type pacedHandler struct {
	cache.ResourceEventHandler
	replicaSets appslisters.ReplicaSetLister

	mu     sync.Mutex
	pauses map[types.UID]*pause // of the ReplicaSets that have one
}

// pause is the time after an update of a ReplicaSet's Pods. If old and updated are set, an update waits for its end.
type pause struct{ old, updated any }

func (h *pacedHandler) OnUpdate(old, updated any) {
	owner, length := h.owner(old, updated)
	if length == 0 {
		h.ResourceEventHandler.OnUpdate(old, updated)
		return
	}
	h.mu.Lock()
	p := h.pauses[owner]
	if p != nil {
		p.old, p.updated = old, updated
		h.mu.Unlock()
		return
	}
	h.pauses[owner] = &pause{}
	h.mu.Unlock()
	h.ResourceEventHandler.OnUpdate(old, updated)
	time.AfterFunc(length, func() { h.end(owner, length) })
}

// end passes on the update that has waited, and begins another pause after it.
func (h *pacedHandler) end(owner types.UID, length time.Duration) {
	h.mu.Lock()
	p := h.pauses[owner]
	if p.updated == nil {
		delete(h.pauses, owner)
		h.mu.Unlock()
		return
	}
	old, updated := p.old, p.updated
	p.old, p.updated = nil, nil
	h.mu.Unlock()
	h.ResourceEventHandler.OnUpdate(old, updated)
	time.AfterFunc(length, func() { h.end(owner, length) })
}

// owner returns the ReplicaSet that a Pod's update is for, and how long its pause is. The pause is 0 if the
// controller shall hear of the update now.
func (h *pacedHandler) owner(old, updated any) (types.UID, time.Duration) {
	was, is := old.(*corev1.Pod), updated.(*corev1.Pod)
	before, owner := metav1.GetControllerOfNoCopy(was), metav1.GetControllerOfNoCopy(is)
	if owner == nil || before == nil || before.UID != owner.UID || owner.Kind != "ReplicaSet" || is.DeletionTimestamp != nil || !maps.Equal(was.Labels, is.Labels) {
		return "", 0
	}
	rs, err := h.replicaSets.ReplicaSets(is.Namespace).Get(owner.Name)
	if err != nil || rs.UID != owner.UID || rs.Spec.Replicas == nil || rs.Spec.MinReadySeconds > 0 { // whose controller notes when a Pod became ready
		return "", 0
	}
	return owner.UID, min(time.Duration(*rs.Spec.Replicas)*pauseForReplica, longestPause)
}
