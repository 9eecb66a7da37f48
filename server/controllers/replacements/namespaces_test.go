package replacements

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

type countedDeletions int

func (c *countedDeletions) Delete(context.Context, string) error {
	*c++
	return nil
}

// namespaceTest is a controller without an API server.
type namespaceTest struct {
	*namespaceController
	admission cache.Store     // what admission sees
	sets      []chan struct{} // of requests, as they were taken
	engine    error           // of the datastore
	deletions countedDeletions
}

func newNamespaceTest() *namespaceTest {
	n := &namespaceTest{admission: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	n.namespaceController = &namespaceController{
		informer: cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Namespace{}, 0, nil),
		deleter:  &n.deletions,
		queue:    workqueue.NewTypedDelayingQueue[string](),
		retry:    workqueue.NewTypedItemExponentialFailureRateLimiter[string](namespaceRetry, namespaceRetryLimit),
		writes: &Writes{
			Admission: n.admission,
			Requests: func(string) <-chan struct{} {
				n.sets = append(n.sets, make(chan struct{}))
				return n.sets[len(n.sets)-1]
			},
			Engine: func(context.Context) error { return n.engine },
		},
		settling: map[types.UID]*settling{},
	}
	return n
}

// deletedNamespace returns a namespace whose deletion began an hour ago and some seconds, so that upstream's
// grace period has passed.
func deletedNamespace(revision string, seconds int) *corev1.Namespace {
	past := metav1.NewTime(time.Now().Add(-time.Hour + time.Duration(seconds)*time.Second))
	return &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1", ResourceVersion: revision, DeletionTimestamp: &past},
		Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating},
	}
}

// A reset takes a deletion back, and the namespace keeps its UID. Its next deletion waits for the requests
// that were admitted before, from when admission sees it: also if the controller has not seen the namespace
// alive in between.
func TestNamespaceIsDeletedAgain(t *testing.T) {
	for _, seen := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			n := newNamespaceTest()
			defer n.queue.ShutDown()
			show := func(ns *corev1.Namespace, stores ...cache.Store) {
				for _, store := range stores {
					if err := store.Add(ns); err != nil {
						t.Fatal(err)
					}
				}
			}
			first := deletedNamespace("5", 0)
			show(first, n.informer.GetStore(), n.admission)
			n.changed(first)
			n.next(ctx)
			close(n.sets[0])
			synctest.Wait()
			if n.next(ctx); n.deletions != 1 {
				t.Fatalf("%d attempts to empty, want one", n.deletions)
			}

			alive, again := first.DeepCopy(), deletedNamespace("7", 1)
			alive.ResourceVersion, alive.DeletionTimestamp, alive.Status.Phase = "6", nil, corev1.NamespaceActive
			show(alive, n.informer.GetStore(), n.admission)
			if seen {
				n.updated(first, alive)
			}
			show(again, n.informer.GetStore())
			if seen {
				n.updated(alive, again)
			} else {
				n.updated(first, again)
			}
			for _, stale := range []*corev1.Namespace{alive, first} {
				show(stale, n.admission)
				n.next(ctx) // waits for the queue
				if len(n.sets) != 1 || n.deletions != 1 {
					t.Errorf("%d sets of requests, %d attempts to empty, while admission sees revision %s", len(n.sets), n.deletions, stale.ResourceVersion)
				}
			}
			show(again, n.admission)
			n.next(ctx)
			if len(n.sets) != 2 || n.deletions != 1 {
				t.Fatalf("%d sets of requests, %d attempts to empty; want a second wait", len(n.sets), n.deletions)
			}
			close(n.sets[1])
			synctest.Wait()
			if n.next(ctx); n.deletions != 2 {
				t.Errorf("%d attempts to empty, want a second one", n.deletions)
			}
		})
	}
}

// The set of requests that a deleted namespace waits for is taken once. When they have ended,
// the queue has the name again. If the datastore does not answer, the controller soon asks
// again. A namespace that has gone leaves no entry behind.
func TestNamespaceSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := newNamespaceTest()
		defer c.queue.ShutDown()
		ns := deletedNamespace("5", 0)
		store := c.informer.GetStore()
		if err := errors.Join(store.Add(ns), c.admission.Add(ns)); err != nil {
			t.Fatal(err)
		}

		for range 3 { // the namespace changes while requests come and go
			c.changed(ns)
			c.next(ctx)
		}
		synctest.Wait()
		if len(c.sets) != 1 || c.deletions != 0 || c.queue.Len() != 0 || c.retry.NumRequeues("a") != 0 {
			t.Fatalf("%d sets of requests, %d attempts to empty, %d in the queue, %d failures; want one set and a wait",
				len(c.sets), c.deletions, c.queue.Len(), c.retry.NumRequeues("a"))
		}

		c.engine = errors.New("a stalled commit")
		close(c.sets[0])
		synctest.Wait()
		if c.queue.Len() != 1 {
			t.Fatal("the requests have ended, and the namespace is not in the queue")
		}
		begun := time.Now()
		c.next(ctx)
		c.engine = nil
		c.next(ctx) // waits for the queue
		if waited := time.Since(begun); waited > 2*namespaceWrites {
			t.Errorf("the datastore was asked again after %v", waited)
		}
		if len(c.sets) != 1 || c.deletions != 1 {
			t.Errorf("%d sets of requests, %d attempts to empty; want one of each", len(c.sets), c.deletions)
		}

		if err := store.Delete(ns); err != nil {
			t.Fatal(err)
		}
		c.gone(ns)
		if settled, again := c.settles(ctx, ns); settled || again == 0 || len(c.settling) != 0 {
			t.Errorf("settled %v, again in %v, %d kept of a namespace that has gone", settled, again, len(c.settling))
		}
	})
}
