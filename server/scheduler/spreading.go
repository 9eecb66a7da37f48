package scheduler

import (
	"context"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	schedulerapi "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/podtopologyspread"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
)

// spreadingName is the name of the plugin that runs in place of upstream's
// PodTopologySpread. The scheduler's metrics have it as the label plugin. Upstream's registry
// refuses a second plugin with the same name.
const spreadingName = "LeanPodTopologySpread"

// spreading is upstream's PodTopologySpread, which counts fewer Pods for upstream's default
// constraints.
//
// For each Pod, upstream counts the matching Pods of all nodes by zone, those of all nodes
// without a zone together. But a node without a zone gets no score for its zone, so nobody
// reads that count. It is the only work of the scheduler that grows with the number of all
// Pods.
type spreading struct {
	*podtopologyspread.PodTopologySpread
	zoned *podtopologyspread.PodTopologySpread // sees only nodes with a zone
}

// useSpreading makes the profiles use spreading in place of upstream's plugin, and returns the
// registry that has it.
func useSpreading(profiles []schedulerapi.KubeSchedulerProfile) frameworkruntime.Registry {
	for i := range profiles {
		for _, point := range pluginSets(profiles[i].Plugins) {
			for j := range point.Enabled {
				rename(&point.Enabled[j].Name)
			}
			for j := range point.Disabled {
				rename(&point.Disabled[j].Name)
			}
		}
		for j := range profiles[i].PluginConfig {
			rename(&profiles[i].PluginConfig[j].Name)
		}
	}
	return frameworkruntime.Registry{spreadingName: newSpreading}
}

// pluginSets returns the sets of plugins for all extension points.
func pluginSets(of *schedulerapi.Plugins) (all []*schedulerapi.PluginSet) {
	if of == nil {
		return nil
	}
	points := reflect.ValueOf(of).Elem()
	for i := range points.NumField() {
		all = append(all, points.Field(i).Addr().Interface().(*schedulerapi.PluginSet))
	}
	return all
}

func rename(plugin *string) {
	if *plugin == podtopologyspread.Name {
		*plugin = spreadingName
	}
}

func newSpreading(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	upstreams := plugins.NewInTreeRegistry()[podtopologyspread.Name]
	full, err := upstreams(ctx, args, handle)
	if err != nil {
		return nil, err
	}
	s := &spreading{}
	var ok bool
	if s.PodTopologySpread, ok = full.(*podtopologyspread.PodTopologySpread); !ok {
		return nil, fmt.Errorf("upstream's plugin %s is a %T", podtopologyspread.Name, full)
	}
	if a, ok := args.(*schedulerapi.PodTopologySpreadArgs); !ok || a.DefaultingType != schedulerapi.SystemDefaulting {
		return s, nil
	}
	zoned, err := upstreams(ctx, args, zonedHandle{handle})
	if err != nil {
		return nil, err
	}
	s.zoned = zoned.(*podtopologyspread.PodTopologySpread)
	return s, nil
}

// Name returns the name of the plugin.
func (*spreading) Name() string { return spreadingName }

// PreScore counts Pods for Score, which upstream's plugin does.
func (s *spreading) PreScore(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	if s.zoned == nil || len(pod.Spec.TopologySpreadConstraints) > 0 {
		return s.PodTopologySpread.PreScore(ctx, state, pod, nodes)
	}
	return s.zoned.PreScore(ctx, state, pod, nodes)
}

// zonedHandle is a handle whose list of nodes is that of zonedNodes.
type zonedHandle struct{ fwk.Handle }

func (h zonedHandle) SnapshotSharedLister() fwk.SharedLister {
	return zonedLister{h.Handle.SnapshotSharedLister()}
}

type zonedLister struct{ fwk.SharedLister }

func (l zonedLister) NodeInfos() fwk.NodeInfoLister { return zonedNodes{l.SharedLister.NodeInfos()} }

type zonedNodes struct{ fwk.NodeInfoLister }

// List returns the nodes whose Pods upstream's plugin has to count by zone. If there are
// none, it returns one of the others, because the plugin scores nothing if there are no
// nodes at all.
func (l zonedNodes) List() ([]fwk.NodeInfo, error) {
	all, err := l.NodeInfoLister.List()
	if err != nil {
		return nil, err
	}
	var zoned []fwk.NodeInfo
	for _, n := range all {
		zone, ok := n.Node().Labels[corev1.LabelTopologyZone]
		if ok && zone == "" { // upstream counts the nodes without a zone with this one
			return all, nil
		}
		if ok {
			zoned = append(zoned, n)
		}
	}
	if len(zoned) == 0 {
		return all[:min(len(all), 1)], nil
	}
	return zoned, nil
}
