package sharedinformers

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

var pods = corev1.Resource("pods")

// informer is an informer whose store the test writes.
type informer struct {
	cache.SharedIndexInformer
	cache.Store
	empty, stopped bool
}

func newInformer() *informer {
	return &informer{Store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
}

func (i *informer) GetStore() cache.Store { return i.Store }
func (i *informer) HasSynced() bool       { return !i.empty }
func (i *informer) IsStopped() bool       { return i.stopped }

func pod(name, revision string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, ResourceVersion: revision},
		Status:     corev1.PodStatus{Phase: phase},
	}
}

func running(object any) bool { return object.(*corev1.Pod).Status.Phase == corev1.PodRunning }

func (i *informer) has(t *testing.T, objects ...any) {
	t.Helper()
	for _, o := range objects {
		if err := i.Add(o); err != nil {
			t.Fatal(err)
		}
	}
}

// Wait waits for each change of a resource in every informer of that resource, and no longer.
func TestWait(t *testing.T) {
	for name, test := range map[string]struct {
		change Change
		before any // in the store; nil: nothing
		after  any // nil: nothing
	}{
		"made":            {Change{"a/x", 10}, nil, pod("x", "10", "")},
		"written":         {Change{"a/x", 10}, pod("x", "9", ""), pod("x", "10", "")},
		"written again":   {Change{"a/x", 10}, pod("x", "9", ""), pod("x", "12", "")},
		"deleted":         {Change{"a/x", 0}, pod("x", "9", ""), nil},
		"deleted, made":   {Change{"a/x", 0}, pod("x", "9", ""), pod("x", "12", "")},
		"no longer keeps": {Change{"a/x", 10}, pod("x", "9", corev1.PodRunning), nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow, other := newInformer(), newInformer()
				other.has(t, pod("x", "11", corev1.PodFailed))
				if test.change.Revision == 0 {
					_ = other.Delete(pod("x", "", ""))
				}
				if test.before != nil {
					slow.has(t, test.before)
				}
				all := []Informer{
					{Resource: pods, Informer: other},
					{Resource: corev1.Resource("nodes"), Informer: newInformer()}, // nothing changed there
					{Resource: pods, Informer: &informer{Store: newInformer().Store, empty: true}},
					{Resource: pods, Informer: &informer{Store: newInformer().Store, stopped: true}},
					{Resource: pods, Informer: slow, Of: "tests"},
				}
				if test.after == nil && test.change.Revision > 0 {
					all[4].Keeps = running
				}
				changes := Changes{Revision: 11, Of: map[schema.GroupResource][]Change{pods: {test.change}}}
				ended := make(chan error, 1)
				go func() { ended <- Wait(t.Context(), all, changes) }()
				time.Sleep(time.Minute)
				// A filtered informer that lacks the object may have seen its deletion.
				select {
				case err := <-ended:
					t.Fatalf("caught up too early: %v", err)
				default:
				}
				switch {
				case test.after != nil:
					slow.has(t, test.after)
				default:
					_ = slow.Delete(pod("x", "", ""))
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Wait does not wait for objects that another client has deleted since.
func TestWaitForWhatIsGone(t *testing.T) {
	changes := Changes{
		Revision: 11, Of: map[schema.GroupResource][]Change{pods: {{"a/x", 10}}},
		Gone: func(resource schema.GroupResource, key string) bool { return resource == pods && key == "a/x" },
	}
	if err := Wait(t.Context(), []Informer{{Resource: pods, Informer: newInformer()}}, changes); err != nil {
		t.Error(err)
	}
}

// The error names an informer that does not catch up, and the objects that it lacks.
func TestWaitNamesTheCulprit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		good := newInformer()
		good.has(t, pod("x", "10", ""), pod("y", "11", ""))
		bad := newInformer()
		bad.has(t, pod("x", "10", ""))
		err := Wait(ctx, []Informer{{Resource: pods, Informer: good, Of: "others"}, {Resource: pods, Informer: bad, Of: "tests"}},
			Changes{Revision: 11, Of: map[schema.GroupResource][]Change{pods: {{"a/x", 10}, {"a/y", 11}}}})
		if !errors.Is(err, ErrLagging) || !strings.Contains(err.Error(), "revision 11: pods of the tests (a/y)") || strings.Contains(err.Error(), "others") {
			t.Errorf("got %v", err)
		}
	})
}
