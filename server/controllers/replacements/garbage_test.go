package replacements

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/utils/lru"
)

// served is a discovery client that does not know ConfigMaps before from, and records when
// it was asked.
type served struct {
	discovery.ServerResourcesInterface
	began, from time.Time

	mu    sync.Mutex
	polls []time.Duration
}

func (s *served) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.polls = append(s.polls, time.Since(s.began))
	verbs := metav1.Verbs{"delete", "list", "watch"}
	list := &metav1.APIResourceList{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "pods", Verbs: verbs}}}
	if !time.Now().Before(s.from) {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: "configmaps", Verbs: verbs})
	}
	return []*metav1.APIResourceList{list}, nil
}

// After a reset, the garbage collector does not treat an owner as absent because it was absent
// before.
func TestGarbageCollectorForgetsAbsentOwners(t *testing.T) {
	none := lru.New(rememberNothing)
	none.Add("owner", nil)
	if _, found := none.Get("owner"); found || none.Len() > 0 {
		t.Error("a cache of size rememberNothing has an entry")
	}
	graph := garbagecollector.NewDependencyGraphBuilder(t.Context(), nil, nil, nil, nil, nil)
	_, _, before := graph.GetGraphResources()
	was := *before
	RememberNoAbsentOwners(graph)
	if _, _, after := graph.GetGraphResources(); after != before || *after == was {
		t.Error("the workers still have the old cache")
	}
}

func TestChangedDefinitionMakesTheGarbageCollectorDiscoverKinds(t *testing.T) {
	// asks does what upstream's loop does: it asks again a second after each answer.
	asks := func(ctx context.Context, k *kinds) (answers []time.Duration) {
		began := time.Now()
		for ctx.Err() == nil {
			k.ServerPreferredResources()
			answers = append(answers, time.Since(began))
			time.Sleep(kindsPause)
		}
		return answers
	}
	const after = 10 * time.Second
	for _, test := range []struct {
		name    string
		changes func(*kinds)
		from    time.Duration // when the ConfigMaps are known
		want    []time.Duration
	}{
		{"no change", func(*kinds) {}, 0, []time.Duration{0, 31 * time.Second, 62 * time.Second}},
		// The first poll after the start always finds a difference.
		{"a change", func(k *kinds) { k.change() }, 12 * time.Second, []time.Duration{0, after + kindsFirstPoll, 12100 * time.Millisecond, 43100 * time.Millisecond}},
		{"a stream of changes", func(k *kinds) {
			for range 4000 {
				k.change()
				time.Sleep(kindsFirstPoll / 5)
			}
		}, 12 * time.Second, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 62500*time.Millisecond)
				defer cancel()
				there := &served{began: time.Now(), from: time.Now().Add(test.from)}
				k := &kinds{ServerResourcesInterface: there, informers: &leaving{}, ctx: ctx, changed: make(chan struct{}, 1)}
				go func() {
					time.Sleep(after)
					test.changes(k)
				}()
				answers := asks(ctx, k)
				if i := slices.IndexFunc(answers, func(d time.Duration) bool { return d >= test.from && d <= test.from+2*time.Second }); test.from > 0 && i < 0 {
					t.Errorf("got answers after %v, want one soon after %v", answers, test.from)
				}
				if test.want == nil {
					return
				}
				if len(answers) > len(test.want) {
					answers = answers[:len(test.want)]
				}
				for i, want := range test.want {
					if i >= len(answers) || (answers[i]-want).Abs() > 200*time.Millisecond {
						t.Fatalf("got answers after %v, want about %v; it was polled after %v", answers, test.want, there.polls)
					}
				}
				if most := 25; len(there.polls) > most {
					t.Errorf("got %d polls, want %d at most: %v", len(there.polls), most, there.polls)
				}
			})
		})
	}
}

// handlers is a factory of one informer, which counts its handlers.
type handlers struct {
	informerfactory.InformerFactory
	informers.GenericInformer
	cache.SharedIndexInformer
	now int
}

func (h *handlers) ForResource(schema.GroupVersionResource) (informers.GenericInformer, error) {
	return h, nil
}
func (h *handlers) Informer() cache.SharedIndexInformer { return h }
func (h *handlers) AddEventHandlerWithOptions(cache.ResourceEventHandler, cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	h.now++
	return nil, nil
}
func (h *handlers) RemoveEventHandler(cache.ResourceEventHandlerRegistration) error {
	h.now--
	return nil
}

// The graph of the garbage collector has one handler for a kind however often it comes, and none a while after it went.
func TestHandlersOfGoneKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		count := &handlers{}
		l := &leaving{InformerFactory: count, handlers: map[schema.GroupVersionResource]*kindHandler{}}
		kind := schema.GroupVersionResource{Group: "shop.example", Version: "v1", Resource: "boats"}
		with, without := map[schema.GroupVersionResource]struct{}{kind: {}}, map[schema.GroupVersionResource]struct{}{}
		for i, step := range []struct {
			comes  bool
			served map[schema.GroupVersionResource]struct{}
			want   int
		}{{true, with, 1}, {false, without, 1}, {false, with, 1}, {false, without, 1}, {true, with, 1}, {false, without, 1}, {false, without, 0}, {true, with, 1}} {
			if step.comes {
				generic, err := l.ForResource(kind)
				if err != nil {
					t.Fatal(err)
				}
				if i == 0 {
					_, err = generic.Informer().AddEventHandlerWithResyncPeriod(nil, 0)
				} else { // as from 1.38 on
					_, err = generic.Informer().AddEventHandlerWithOptions(nil, cache.HandlerOptions{})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			l.forget(step.served)
			if count.now != step.want {
				t.Errorf("step %d: got %d handlers, want %d", i, count.now, step.want)
			}
			time.Sleep(kindsPause)
		}
	})
}
