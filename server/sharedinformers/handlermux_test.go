package sharedinformers

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/karve-k8s/karve/server/deviations"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

// calls are what a handler was called for, in order.
type calls struct {
	mu  sync.Mutex
	all []string
}

func (c *calls) add(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, fmt.Sprintf(format, args...))
}

func (c *calls) OnAdd(object any, initial bool) {
	n := object.(*corev1.Node)
	c.add("add %s %q initial=%v", n.Name, n.Labels["step"], initial)
}

func (c *calls) OnUpdate(old, object any) {
	o, n := old.(*corev1.Node), object.(*corev1.Node)
	c.add("update %s %q to %q", n.Name, o.Labels["step"], n.Labels["step"])
}

func (c *calls) OnDelete(object any) { c.add("delete %s", object.(*corev1.Node).Name) }

// A mux calls handlers as upstream's informer does: handlers that were added before the start
// and later, with resyncs and without. It does not call them after their removal.
func TestHandlerMuxCallsHandlersLikeUpstream(t *testing.T) {
	run := func(t *testing.T, multiplexed bool) map[string][]string {
		got := map[string]*calls{}
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "first"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gone"}})
			factory := informers.NewSharedInformerFactory(client, 10*time.Minute)
			if multiplexed {
				if err := Multiplex(factory, deviations.Switches{}, &corev1.Node{}); err != nil {
					t.Fatal(err)
				}
				if err := Multiplex(factory, deviations.Switches{}, &corev1.Node{}); err == nil {
					t.Error("multiplexed twice, and no error")
				}
			}
			nodes := factory.Core().V1().Nodes().Informer()
			_, isShared := nodes.(*sharedInformer)
			if isShared != multiplexed {
				t.Fatalf("multiplexed: %v, want %v", isShared, multiplexed)
			}
			handles := map[string]cache.ResourceEventHandlerRegistration{}
			add := func(name string, resync *time.Duration) {
				t.Helper()
				got[name] = &calls{}
				var err error
				if handles[name], err = nodes.AddEventHandlerWithOptions(got[name], cache.HandlerOptions{ResyncPeriod: resync}); err != nil {
					t.Fatal(err)
				}
			}
			never, often := time.Duration(0), 3*time.Minute
			add("default", nil)
			add("never", &never)
			add("often", &often)
			add("removed", nil)
			factory.StartWithContext(ctx)
			for name, h := range handles {
				if !cache.WaitFor(ctx, "", h.HasSyncedChecker()) || !h.HasSynced() {
					t.Errorf("%s has not synced", name)
				}
			}
			step := func(what string) {
				synctest.Wait()
				for _, c := range got {
					c.add("-- %s", what)
				}
			}
			change := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			api := client.CoreV1().Nodes()
			step("started")
			_, err := api.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "second"}}, metav1.CreateOptions{})
			change(err)
			for i := range 3 {
				_, err = api.Update(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "first", ResourceVersion: fmt.Sprint(100 + i), Labels: map[string]string{"step": fmt.Sprint(i)}}}, metav1.UpdateOptions{})
				change(err)
			}
			change(api.Delete(ctx, "gone", metav1.DeleteOptions{}))
			step("changed")
			change(nodes.RemoveEventHandler(handles["removed"]))
			add("later", nil)
			add("later and never", &never)
			synctest.Wait()
			for _, name := range []string{"later", "later and never"} {
				if !handles[name].HasSynced() || !cache.IsDone(handles[name].HasSyncedChecker()) {
					t.Errorf("%s has not synced", name)
				}
			}
			step("two have joined")
			_, err = api.Update(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "second", ResourceVersion: "200", Labels: map[string]string{"step": "x"}}}, metav1.UpdateOptions{})
			change(err)
			step("changed again")
			for range 4 {
				time.Sleep(10 * time.Minute)
				synctest.Wait()
			}
			step("resynced")
			change(api.Delete(ctx, "second", metav1.DeleteOptions{}))
			cancel()
			factory.Shutdown()
		})
		log := map[string][]string{}
		for name, c := range got {
			log[name] = c.all
		}
		return log
	}
	want, got := run(t, false), run(t, true)
	for name, w := range want {
		// Objects there were come in any order, and so do those of a resync.
		steps := func(log []string) (out []string) {
			var part []string
			for _, line := range append(log, "--") {
				if line[:2] == "--" {
					slices.Sort(part)
					out, part = append(append(out, part...), line), nil
					continue
				}
				part = append(part, line)
			}
			return out
		}
		order := func(log []string) (first []string) { // what one object went through
			for _, line := range log {
				if len(line) > 12 && line[:12] == "update first" {
					first = append(first, line)
				}
			}
			return first
		}
		if g := got[name]; !slices.Equal(steps(g), steps(w)) || !slices.Equal(order(g), order(w)) {
			t.Errorf("handler %s: got\n%q\nwant\n%q", name, g, w)
		}
		if len(w) < 6 {
			t.Errorf("handler %s: upstream's has seen only %q", name, w)
		}
	}
}

// A handler that does not return delays no other handler.
func TestMuxedHandlerWaitsForNoOther(t *testing.T) {
	r := newHandlerMux()
	stuck, release := make(chan struct{}), make(chan struct{})
	slow := &muxedHandler{synced: make(chan struct{}), handler: cache.ResourceEventHandlerFuncs{AddFunc: func(any) { close(stuck); <-release }}}
	seen := make(chan string, 10)
	quick := &muxedHandler{synced: make(chan struct{}), handler: cache.ResourceEventHandlerFuncs{AddFunc: func(o any) { seen <- o.(*corev1.Node).Name }}}
	r.join(slow)
	r.join(quick)
	for _, name := range []string{"a", "b"} {
		r.OnAdd(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, true)
		if name == "a" {
			<-stuck
		}
		if got := <-seen; got != name {
			t.Errorf("got %s, want %s", got, name)
		}
	}
	r.synced()
	<-quick.synced
	select {
	case <-slow.synced:
		t.Error("the slow handler has synced before it returned")
	default:
	}
	if left := r.leave(slow); left != 1 { // or it would be called again, and close a closed channel
		t.Errorf("%d handlers are left, want 1", left)
	}
	close(release)
}
