package scheduler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	fwk "k8s.io/kube-scheduler/framework"
	schedulerapi "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/podtopologyspread"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// Spreading scores nodes exactly as upstream's plugin, with zones, without, and with both, for
// upstream's default constraints, for those of a configuration and for those of a Pod.
func TestSpreadingIsUpstreams(t *testing.T) {
	metrics.Register()
	lists := &schedulerapi.PodTopologySpreadArgs{DefaultingType: schedulerapi.ListDefaulting, DefaultConstraints: []corev1.TopologySpreadConstraint{
		{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway},
	}}
	zones := map[string][]string{ // of the nodes, in turns; - is a node without a zone
		"no zones": {"-"}, "zones": {"a", "b", "c"}, "some zones": {"-", "a", "-", "-", "b"}, "an empty zone": {"-", "", "a"}, "one zone": {"a"},
	}
	for name, zones := range zones {
		for _, args := range []*schedulerapi.PodTopologySpreadArgs{{DefaultingType: schedulerapi.SystemDefaulting}, lists} {
			t.Run(fmt.Sprint(name, ", ", args.DefaultingType), func(t *testing.T) {
				uneven := false
				for seed := range uint64(20) {
					uneven = compareSpreading(t, rand.New(rand.NewPCG(seed, 0)), zones, args) || uneven
				}
				// A list of the zone alone tells nodes without one, and those of one zone, not apart.
				if !uneven && args != lists {
					t.Error("all nodes always had the same score, so nothing was compared")
				}
			})
		}
	}
}

// BenchmarkSpreading has the time of PreScore for a Pod on 1,000 nodes with 10,000 Pods.
func BenchmarkSpreading(b *testing.B) {
	metrics.Register()
	var nodes []*corev1.Node
	var bound []*corev1.Pod
	for i := range 1000 {
		name := fmt.Sprint("node-", i)
		nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}})
		for j := range 10 {
			bound = append(bound, podOf(i%100, fmt.Sprint("pod-", i, "-", j), name))
		}
	}
	handle := newHandle(b, bound, nodes, 100)
	all, err := handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		b.Fatal(err)
	}
	for name, factory := range map[string]frameworkruntime.PluginFactory{"upstream": plugins.NewInTreeRegistry()[podtopologyspread.Name], "karve": newSpreading} {
		b.Run(name, func(b *testing.B) {
			plugin, err := factory(b.Context(), &schedulerapi.PodTopologySpreadArgs{DefaultingType: schedulerapi.SystemDefaulting}, handle)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if status := plugin.(fwk.PreScorePlugin).PreScore(b.Context(), framework.NewCycleState(), podOf(0, "new", ""), all[:420]); !status.IsSuccess() {
					b.Fatal(status.AsError())
				}
			}
		})
	}
}

// podOf returns a Pod of a ReplicaSet that newHandle has made.
func podOf(set int, name, node string) *corev1.Pod {
	yes := true
	labels := map[string]string{"app": fmt.Sprint("set-", set)}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: labels["app"], Controller: &yes},
		}},
		Spec: corev1.PodSpec{NodeName: node},
	}
}

// newHandle returns what plugins see of a scheduler, with Pods on nodes and a number of
// ReplicaSets.
func newHandle(t testing.TB, bound []*corev1.Pod, nodes []*corev1.Node, sets int) fwk.Handle {
	t.Helper()
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	for i := range sets {
		labels := map[string]string{"app": fmt.Sprint("set-", i)}
		err := factory.Apps().V1().ReplicaSets().Informer().GetIndexer().Add(&appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: labels["app"]}, Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	handle, err := frameworkruntime.NewFramework(t.Context(), plugins.NewInTreeRegistry(), minimalProfile(),
		frameworkruntime.WithSnapshotSharedLister(schedulercache.NewSnapshot(bound, nodes)), frameworkruntime.WithInformerFactory(factory))
	if err != nil {
		t.Fatal(err)
	}
	return handle
}

// compareSpreading makes a cluster, scores its nodes for Pods of all kinds, and reports
// whether some scores differed between nodes.
func compareSpreading(t *testing.T, random *rand.Rand, zones []string, args *schedulerapi.PodTopologySpreadArgs) (uneven bool) {
	t.Helper()
	const sets = 3
	var nodes []*corev1.Node
	for i := range 1 + random.IntN(12) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i), Labels: map[string]string{corev1.LabelHostname: fmt.Sprint("node-", i)}}}
		if zone := zones[i%len(zones)]; zone != "-" {
			n.Labels[corev1.LabelTopologyZone] = zone
		}
		nodes = append(nodes, n)
	}
	var bound []*corev1.Pod
	for i := range random.IntN(60) {
		bound = append(bound, podOf(random.IntN(sets), fmt.Sprint("pod-", i), nodes[random.IntN(len(nodes))].Name))
	}
	handle := newHandle(t, bound, nodes, sets)
	theirs, err := plugins.NewInTreeRegistry()[podtopologyspread.Name](t.Context(), args, handle)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := newSpreading(t.Context(), args, handle)
	if err != nil {
		t.Fatal(err)
	}
	all, err := handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		fitting := slices.DeleteFunc(slices.Clone(all), func(fwk.NodeInfo) bool { return random.IntN(4) == 0 })
		pod := podOf(random.IntN(sets), "new", "")
		if random.IntN(3) == 0 {
			pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
			}}
		}
		want, got := scores(t, theirs, pod, fitting), scores(t, ours, pod, fitting)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("zones %q, %d nodes, Pod with constraints %v: got scores %v, upstream has %v", zones, len(nodes), pod.Spec.TopologySpreadConstraints, got, want)
		}
		for _, s := range want {
			uneven = uneven || s.Score != want[0].Score
		}
	}
	return uneven
}

func minimalProfile() *schedulerapi.KubeSchedulerProfile {
	return &schedulerapi.KubeSchedulerProfile{SchedulerName: corev1.DefaultSchedulerName, Plugins: &schedulerapi.Plugins{
		QueueSort: schedulerapi.PluginSet{Enabled: []schedulerapi.Plugin{{Name: "PrioritySort"}}},
		Bind:      schedulerapi.PluginSet{Enabled: []schedulerapi.Plugin{{Name: "DefaultBinder"}}},
	}}
}

// scores does with a plugin what the scheduler does. The first score is nil if the plugin
// skips the Pod.
func scores(t *testing.T, plugin fwk.Plugin, pod *corev1.Pod, nodes []fwk.NodeInfo) fwk.NodeScoreList {
	t.Helper()
	type scorer interface {
		fwk.PreScorePlugin
		fwk.ScorePlugin
	}
	p, ctx, state := plugin.(scorer), context.Context(t.Context()), framework.NewCycleState()
	switch status := p.PreScore(ctx, state, pod, nodes); {
	case status.IsSkip():
		return nil
	case !status.IsSuccess():
		t.Fatal(status.AsError())
	}
	var all fwk.NodeScoreList
	for _, n := range nodes {
		score, status := p.Score(ctx, state, pod, n)
		if !status.IsSuccess() {
			t.Fatal(status.AsError())
		}
		all = append(all, fwk.NodeScore{Name: n.Node().Name, Score: score})
	}
	if status := p.ScoreExtensions().NormalizeScore(ctx, state, pod, all); !status.IsSuccess() {
		t.Fatal(status.AsError())
	}
	return all
}

// A profile uses the plugin at every place where it used upstream's, and nowhere else.
func TestSpreadingReplacesUpstreams(t *testing.T) {
	count := func(profile schedulerapi.KubeSchedulerProfile, name string) (found int, weight int32) {
		for _, set := range pluginSets(profile.Plugins) {
			for _, p := range append(slices.Clone(set.Enabled), set.Disabled...) {
				if p.Name == name {
					found, weight = found+1, max(weight, p.Weight)
				}
			}
		}
		for _, c := range profile.PluginConfig {
			if c.Name == name {
				found++
			}
		}
		return found, weight
	}
	config, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	profile := &config.Profiles[0]
	profile.Plugins.Filter.Disabled = append(profile.Plugins.Filter.Disabled, schedulerapi.Plugin{Name: podtopologyspread.Name})
	found, weight := count(*profile, podtopologyspread.Name)
	if found < 3 || weight == 0 {
		t.Fatalf("upstream's default profile has the plugin in %d places, with a weight of %d", found, weight)
	}
	registry := useSpreading(config.Profiles)
	if left, _ := count(*profile, podtopologyspread.Name); left > 0 {
		t.Errorf("upstream's plugin is still in %d places", left)
	}
	if n, w := count(*profile, spreadingName); n != found || w != weight {
		t.Errorf("the plugin is in %d places, with a weight of %d; want %d and %d", n, w, found, weight)
	}
	if registry[spreadingName] == nil {
		t.Error("the registry does not have the plugin")
	}
}
