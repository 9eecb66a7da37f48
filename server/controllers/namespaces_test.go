package controllers

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

// The set of requests that a deleted namespace waits for is taken once. When they have ended,
// the queue has the name again. If the datastore does not answer, the controller soon asks
// again. A namespace that has gone leaves no entry behind.
func TestNamespaceSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var sets []chan struct{}
		var engine error
		var deletions countedDeletions
		c := &namespaceController{
			informer: cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Namespace{}, 0, nil),
			deleter:  &deletions,
			queue:    workqueue.NewTypedDelayingQueue[string](),
			retry:    workqueue.NewTypedItemExponentialFailureRateLimiter[string](namespaceRetry, namespaceRetryLimit),
			writes: &Writes{
				Requests: func(string) <-chan struct{} {
					sets = append(sets, make(chan struct{}))
					return sets[len(sets)-1]
				},
				Engine: func(context.Context) error { return engine },
			},
			settling: map[types.UID]*settling{},
		}
		defer c.queue.ShutDown()
		past := metav1.NewTime(time.Now().Add(-time.Hour)) // upstream's grace period has passed
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1", DeletionTimestamp: &past}}
		store := c.informer.GetStore()
		if err := store.Add(ns); err != nil {
			t.Fatal(err)
		}

		for range 3 { // the namespace changes while requests come and go
			c.changed(ns)
			c.next(ctx)
		}
		synctest.Wait()
		if len(sets) != 1 || deletions != 0 || c.queue.Len() != 0 || c.retry.NumRequeues("a") != 0 {
			t.Fatalf("%d sets of requests, %d attempts to empty, %d in the queue, %d failures; want one set and a wait",
				len(sets), deletions, c.queue.Len(), c.retry.NumRequeues("a"))
		}

		engine = errors.New("a stalled commit")
		close(sets[0])
		synctest.Wait()
		if c.queue.Len() != 1 {
			t.Fatal("the requests have ended, and the namespace is not in the queue")
		}
		begun := time.Now()
		c.next(ctx)
		engine = nil
		c.next(ctx) // waits for the queue
		if waited := time.Since(begun); waited > 2*namespaceWrites {
			t.Errorf("the datastore was asked again after %v", waited)
		}
		if len(sets) != 1 || deletions != 1 {
			t.Errorf("%d sets of requests, %d attempts to empty; want one of each", len(sets), deletions)
		}

		if err := store.Delete(ns); err != nil {
			t.Fatal(err)
		}
		c.gone(ns)
		if settled, again := c.settles(ctx, ns); settled || again != 0 || len(c.settling) != 0 {
			t.Errorf("settled %v, again in %v, %d kept of a namespace that has gone", settled, again, len(c.settling))
		}
	})
}
