package sharedinformers

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/server/deviations"
)

// A factory with an informer of another factory behaves like one with its own informer: it
// calls no handler before its start or after its end. The owner's handlers continue to be
// called.
func TestSharedInformer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "first"}})
		owner, user := informers.NewSharedInformerFactory(client, 0), informers.NewSharedInformerFactory(client, 0)
		if err := Share(user, owner, deviations.Switches{}, &corev1.Node{}); err != nil {
			t.Fatal(err)
		}
		if err := Share(user, owner, deviations.Switches{}, &corev1.Node{}); err == nil {
			t.Error("shared twice, and no error")
		}
		var owners, users, removed atomic.Int32
		count := func(n *atomic.Int32) cache.ResourceEventHandler {
			return cache.ResourceEventHandlerFuncs{AddFunc: func(any) { n.Add(1) }}
		}
		want := func(when string, o, u, r int32) {
			t.Helper()
			synctest.Wait()
			if owners.Load() != o || users.Load() != u || removed.Load() != r {
				t.Errorf("%s: got %d of the owner's, %d of the user's, %d removed; want %d, %d, %d", when, owners.Load(), users.Load(), removed.Load(), o, u, r)
			}
		}
		if _, err := owner.Core().V1().Nodes().Informer().AddEventHandler(count(&owners)); err != nil {
			t.Fatal(err)
		}
		owner.StartWithContext(ctx)
		defer owner.Shutdown()
		defer cancel()
		want("the owner has started", 1, 0, 0)

		using, stop := context.WithCancel(ctx)
		shared := user.Core().V1().Nodes()
		handle, err := shared.Informer().AddEventHandler(count(&users))
		if err != nil {
			t.Fatal(err)
		}
		other, err := shared.Informer().AddEventHandler(count(&removed))
		if err != nil {
			t.Fatal(err)
		}
		if handle.HasSynced() || cache.IsDone(handle.HasSyncedChecker()) {
			t.Error("a handler has synced before the start")
		}
		user.StartWithContext(using)
		if !cache.WaitFor(using, "", handle.HasSyncedChecker(), other.HasSyncedChecker()) || !handle.HasSynced() {
			t.Error("the handlers have not synced")
		}
		want("both have started", 1, 1, 1)
		if err := shared.Informer().RemoveEventHandler(other); err != nil {
			t.Error(err)
		}
		if _, err := shared.Informer().AddEventHandler(count(&users)); err != nil {
			t.Fatal(err)
		}
		want("another handler after the start", 1, 2, 1)
		node := func(name string) {
			if _, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		node("second")
		want("another object", 2, 4, 1)
		if _, err := shared.Lister().Get("second"); err != nil {
			t.Error(err)
		}
		stop()
		user.Shutdown()
		synctest.Wait()
		node("third")
		want("the user has stopped", 3, 4, 1)
	})
}

// A part that fails has started informers that others use. They run on, and it can start them again.
func TestInformersOutliveWhoStartsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancel(t.Context())
		all := Last(informers.NewSharedInformerFactory(fake.NewClientset(), 0), life)
		nodes := all.Core().V1().Nodes().Informer()
		attempt, fail := context.WithCancel(life)
		all.StartWithContext(attempt)
		all.Start(attempt.Done())
		fail()
		synctest.Wait()
		if nodes.IsStopped() {
			t.Error("it has stopped with the part")
		}
		end()
		synctest.Wait()
		if !nodes.IsStopped() {
			t.Error("it runs after the end")
		}
	})
}

// Handlers are called again as often as their own factory says, and not as the owner's.
func TestResyncOfASharedInformer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "first"}})
		owner := informers.NewSharedInformerFactory(client, Resync)
		var again [3]atomic.Int32
		for i, every := range []time.Duration{0, 3 * Resync, 0} {
			user := informers.NewSharedInformerFactory(client, every)
			if err := Share(user, owner, deviations.Switches{}, &corev1.Node{}); err != nil {
				t.Fatal(err)
			}
			count := cache.ResourceEventHandlerFuncs{UpdateFunc: func(any, any) { again[i].Add(1) }}
			var options cache.HandlerOptions
			if i == 2 {
				options.ResyncPeriod = ptr.To(Resync) // its own
			}
			if _, err := user.Core().V1().Nodes().Informer().AddEventHandlerWithOptions(count, options); err != nil {
				t.Fatal(err)
			}
			user.StartWithContext(t.Context())
		}
		owner.StartWithContext(t.Context())
		time.Sleep(6*Resync + Resync/2)
		if got := []int32{again[0].Load(), again[1].Load(), again[2].Load()}; !slices.Equal(got, []int32{0, 2, 6}) {
			t.Errorf("called again %d times, want 0, 2 and 6", got)
		}
	})
}

// Those who use a shared informer a second time find their own indexes. Another index of the same name
// is a conflict.
func TestIndexesOfASecondLife(t *testing.T) {
	owner := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	index := func(any) ([]string, error) { return nil, nil }
	for range 2 {
		user := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
		if err := Share(user, owner, deviations.Switches{}, &corev1.Node{}); err != nil {
			t.Fatal(err)
		}
		shared := user.Core().V1().Nodes().Informer()
		if err := shared.AddIndexers(cache.Indexers{"of the informer": index}); err != nil {
			t.Error(err)
		}
		if err := shared.GetIndexer().AddIndexers(cache.Indexers{"of the store": index}); err != nil {
			t.Error(err)
		}
		for name := range shared.GetIndexer().GetIndexers() {
			another := cache.Indexers{name: func(any) ([]string, error) { return nil, nil }}
			if shared.AddIndexers(another) == nil || shared.GetIndexer().AddIndexers(another) == nil {
				t.Errorf("another index %q replaces the first", name)
			}
		}
	}
}
