package replacements

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/kubernetes/fake"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// heard is a handler that notes what it hears.
type heard struct{ said []string }

func (h *heard) OnAdd(obj any, _ bool) { h.note("added", obj) }
func (h *heard) OnUpdate(_, obj any)   { h.note("updated", obj) }
func (h *heard) OnDelete(obj any)      { h.note("deleted", obj) }
func (h *heard) note(what string, obj any) {
	pod := obj.(*corev1.Pod)
	h.said = append(h.said, what+" "+pod.Name+" "+pod.ResourceVersion)
}

func TestReplicaSetsArePaced(t *testing.T) {
	replicaSets := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for name, spec := range map[string]appsv1.ReplicaSetSpec{
		"small": {Replicas: ptr.To[int32](20)}, "large": {Replicas: ptr.To[int32](1000)}, "huge": {Replicas: ptr.To[int32](100000)},
		"none": {Replicas: ptr.To[int32](0)}, "slow": {Replicas: ptr.To[int32](1000), MinReadySeconds: 1},
	} {
		if err := replicaSets.Add(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}, Spec: spec}); err != nil {
			t.Fatal(err)
		}
	}
	pod := func(version int, owner, uid string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "of-" + owner, ResourceVersion: fmt.Sprint(version), Labels: map[string]string{"app": owner}}}
		if owner != "" {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner, UID: types.UID(uid), Controller: ptr.To(true)}}
		}
		if change != nil {
			change(p)
		}
		return p
	}
	synctest.Test(t, func(t *testing.T) {
		h := &heard{}
		paced := &pacedHandler{ResourceEventHandler: h, replicaSets: appslisters.NewReplicaSetLister(replicaSets), pauses: map[types.UID]*pause{}}
		want := func(what string, said ...string) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(h.said, said) {
				t.Errorf("%s: heard %q, want %q", what, h.said, said)
			}
			h.said = nil
		}
		update := func(owner string, from, to int) {
			for v := from; v <= to; v++ {
				paced.OnUpdate(pod(v-1, owner, owner, nil), pod(v, owner, owner, nil))
			}
		}

		// A burst is heard at its beginning, and once after each pause, until all of it was heard.
		for owner, length := range map[string]time.Duration{"small": 10 * time.Millisecond, "large": 500 * time.Millisecond, "huge": time.Second} {
			update(owner, 2, 100)
			want("begin", "updated of-"+owner+" 2")
			time.Sleep(length)
			want("end of the pause", "updated of-"+owner+" 100")
			update(owner, 101, 102)
			want("the pause after it")
			time.Sleep(length)
			want("its end", "updated of-"+owner+" 102")
			time.Sleep(length)
			want("nothing more")
			update(owner, 103, 103)
			want("later", "updated of-"+owner+" 103")
			time.Sleep(length)
		}
		synctest.Wait()
		if len(paced.pauses) != 0 {
			t.Errorf("%d pauses are kept", len(paced.pauses))
		}

		// Several ReplicaSets do not wait for each other.
		update("large", 2, 3)
		update("small", 2, 2)
		want("two", "updated of-large 2", "updated of-small 2")

		// What counts for the controller's expectations and for others is heard at once, also within a pause.
		paced.OnAdd(pod(1, "large", "large", nil), false)
		paced.OnDelete(pod(4, "large", "large", nil))
		want("additions and deletions", "added of-large 1", "deleted of-large 4")
		for what, update := range map[string][2]*corev1.Pod{
			"deletion begins":             {pod(4, "large", "large", nil), pod(5, "large", "large", func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) })},
			"labels":                      {pod(4, "large", "large", func(p *corev1.Pod) { p.Labels["app"] = "other" }), pod(5, "large", "large", nil)},
			"adopted":                     {pod(4, "", "", nil), pod(5, "large", "large", nil)},
			"another owner":               {pod(4, "small", "small", nil), pod(5, "large", "large", nil)},
			"another kind":                {pod(4, "large", "large", nil), pod(5, "large", "large", func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "Job" })},
			"an owner that is made again": {pod(4, "large", "former", nil), pod(5, "large", "former", nil)},
		} {
			paced.OnUpdate(update[0], update[1])
			want(what, "updated of-large 5")
		}
		paced.OnUpdate(pod(4, "large", "large", nil), pod(5, "", "", nil))
		want("released", "updated of- 5")
		for _, owner := range []string{"none", "slow", "gone", ""} {
			update(owner, 2, 3)
			want(owner, "updated of-"+owner+" 2", "updated of-"+owner+" 3")
		}
		time.Sleep(500 * time.Millisecond)
		want("the one that waited", "updated of-large 3")
	})
}

// pods is an informer that keeps the handler that it is given.
type pods struct {
	cache.SharedIndexInformer
	handler cache.ResourceEventHandler
}

func (p *pods) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	p.handler = h
	return nil, nil
}

// stubFactory has that informer.
type stubFactory struct {
	informers.SharedInformerFactory
	pods *pods
}

func (f stubFactory) InformerFor(obj runtime.Object, make internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	if _, ok := obj.(*corev1.Pod); ok {
		return f.pods
	}
	return f.SharedInformerFactory.InformerFor(obj, make)
}

// Only handlers of Pods are paced.
func TestPacedFactory(t *testing.T) {
	stub := stubFactory{informers.NewSharedInformerFactory(fake.NewClientset(), 0), &pods{}}
	f := PaceReplicaSets(stub)
	if _, err := f.Core().V1().Pods().Informer().AddEventHandler(&heard{}); err != nil {
		t.Fatal(err)
	}
	if _, ok := stub.pods.handler.(*pacedHandler); !ok {
		t.Errorf("a handler of Pods became %T", stub.pods.handler)
	}
	if got, want := f.Core().V1().Nodes().Informer().GetIndexer(), stub.Core().V1().Nodes().Informer().GetIndexer(); got != want {
		t.Error("the informer of another type is not the factory's")
	}
}
