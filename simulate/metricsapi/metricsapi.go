// Package metricsapi serves the API group metrics.k8s.io for simulated nodes and their
// Pods. It is not in package simulate, because it links upstream's API server.
package metricsapi

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/metrics/pkg/apis/metrics"
	"k8s.io/metrics/pkg/apis/metrics/install"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/karve-k8s/karve/simulate"
)

// usageWindow is the time over which the usage claims to be measured. The autoscaler waits
// that long after a Pod has become ready before it uses a measurement.
const usageWindow = time.Second

// Group returns the API group metrics.k8s.io as metrics-server serves it, for simulated nodes
// and their Pods. Annotations and the server's defaults for Pods set the usage of each. Autoscalers and
// `kubectl top` use the group.
func Group(shared informers.SharedInformerFactory, pods map[string]string) *genericapiserver.APIGroupInfo {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	metav1.AddToGroupVersion(scheme, metricsv1beta1.SchemeGroupVersion)
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion) // options of requests
	info := genericapiserver.NewDefaultAPIGroupInfo(metrics.GroupName, scheme, runtime.NewParameterCodec(scheme), serializer.NewCodecFactory(scheme))
	core := shared.Core().V1()
	source := usages{core.Pods().Lister(), core.Nodes().Lister(), simulate.Defaults{Pods: pods, Namespaces: core.Namespaces().Informer().GetStore()}}
	info.VersionedResourcesStorageMap[metricsv1beta1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"pods":  podMetrics{source},
		"nodes": nodeMetrics{source},
	}
	return &info
}

// usages returns what Pods and nodes use.
type usages struct {
	pods  corelisters.PodLister
	nodes corelisters.NodeLister

	defaults simulate.Defaults
}

// now returns the usage for one request.
func (u usages) now() *simulate.Usage {
	return simulate.NewUsage(u.defaults, func() []*corev1.Pod {
		pods, _ := u.pods.List(labels.Everything())
		return pods
	})
}

// ofPod returns nil for a Pod that does not run on a simulated node.
func (u usages) ofPod(p *corev1.Pod, used *simulate.Usage) *metrics.PodMetrics {
	if p.Status.Phase != corev1.PodRunning || p.Spec.NodeName == "" {
		return nil
	}
	if n, err := u.nodes.Get(p.Spec.NodeName); err != nil || !simulate.IsNode(n) {
		return nil
	}
	m := &metrics.PodMetrics{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, Labels: p.Labels, CreationTimestamp: metav1.Now()},
		Timestamp:  metav1.Now(), Window: metav1.Duration{Duration: usageWindow},
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) { // sidecars, too
		if c.State.Running != nil {
			m.Containers = append(m.Containers, metrics.ContainerMetrics{Name: c.Name, Usage: used.Of(p, c.Name)})
		}
	}
	return m
}

// ofNode returns nil for a node that is not simulated. all are the Pods that may run on it.
func (u usages) ofNode(n *corev1.Node, all []*corev1.Pod, used *simulate.Usage) *metrics.NodeMetrics {
	if !simulate.IsNode(n) || simulate.IsDown(n) {
		return nil
	}
	var cpu, memory resource.Quantity
	for _, p := range all {
		if p.Spec.NodeName != n.Name {
			continue
		}
		if m := u.ofPod(p, used); m != nil {
			podCPU, podMemory := sum(m)
			cpu.Add(podCPU)
			memory.Add(podMemory)
		}
	}
	return &metrics.NodeMetrics{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels, CreationTimestamp: metav1.Now()},
		Timestamp:  metav1.Now(), Window: metav1.Duration{Duration: usageWindow},
		Usage: corev1.ResourceList{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory},
	}
}

// podMetrics is the resource pods of the group.
type podMetrics struct{ usages }

func (podMetrics) New() runtime.Object     { return &metrics.PodMetrics{} }
func (podMetrics) NewList() runtime.Object { return &metrics.PodMetricsList{} }
func (podMetrics) Destroy()                {}
func (podMetrics) NamespaceScoped() bool   { return true }
func (podMetrics) GetSingularName() string { return "pod" }
func (podMetrics) Kind() string            { return "PodMetrics" }

func (s podMetrics) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if p, err := s.pods.Pods(genericapirequest.NamespaceValue(ctx)).Get(name); err == nil {
		if m := s.ofPod(p, s.now()); m != nil {
			return m, nil
		}
	}
	return nil, apierrors.NewNotFound(metrics.Resource("pods"), name)
}

func (s podMetrics) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	labelled, chosen := chosenBy(options)
	pods, err := s.pods.Pods(genericapirequest.NamespaceValue(ctx)).List(labelled)
	if err != nil {
		return nil, err
	}
	list, used := &metrics.PodMetricsList{Items: []metrics.PodMetrics{}}, s.now()
	for _, p := range pods {
		if m := s.ofPod(p, used); m != nil && chosen(p) {
			list.Items = append(list.Items, *m)
		}
	}
	return list, nil
}

// nodeMetrics is the resource nodes of the group.
type nodeMetrics struct{ usages }

func (nodeMetrics) New() runtime.Object     { return &metrics.NodeMetrics{} }
func (nodeMetrics) NewList() runtime.Object { return &metrics.NodeMetricsList{} }
func (nodeMetrics) Destroy()                {}
func (nodeMetrics) NamespaceScoped() bool   { return false }
func (nodeMetrics) GetSingularName() string { return "node" }
func (nodeMetrics) Kind() string            { return "NodeMetrics" }

func (s nodeMetrics) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	pods, err := s.pods.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	if n, err := s.nodes.Get(name); err == nil {
		if m := s.ofNode(n, pods, s.now()); m != nil {
			return m, nil
		}
	}
	return nil, apierrors.NewNotFound(metrics.Resource("nodes"), name)
}

func (s nodeMetrics) List(_ context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	labelled, chosen := chosenBy(options)
	nodes, err := s.nodes.List(labelled)
	if err != nil {
		return nil, err
	}
	pods, err := s.pods.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	on := map[string][]*corev1.Pod{}
	for _, p := range pods {
		on[p.Spec.NodeName] = append(on[p.Spec.NodeName], p)
	}
	list, used := &metrics.NodeMetricsList{Items: []metrics.NodeMetrics{}}, s.now()
	for _, n := range nodes {
		if m := s.ofNode(n, on[n.Name], used); m != nil && chosen(n) {
			list.Items = append(list.Items, *m)
		}
	}
	return list, nil
}

// chosenBy returns what selects the objects of a list: a label selector, and a function that
// checks name and namespace.
func chosenBy(options *metainternalversion.ListOptions) (labels.Selector, func(metav1.Object) bool) {
	labelled, named := labels.Everything(), fields.Everything()
	if options != nil && options.LabelSelector != nil {
		labelled = options.LabelSelector
	}
	if options != nil && options.FieldSelector != nil {
		named = options.FieldSelector
	}
	return labelled, func(o metav1.Object) bool {
		return named.Matches(fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()})
	}
}

// ConvertToTable returns what kubectl get shows, with metrics-server's columns.
func (usages) ConvertToTable(_ context.Context, object, _ runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name"}, {Name: "cpu", Type: "string"},
		{Name: "memory", Type: "string"}, {Name: "Window", Type: "string"},
	}}
	row := func(of runtime.Object) error {
		var name string
		var cpu, memory resource.Quantity
		switch m := of.(type) {
		case *metrics.PodMetrics:
			name = m.Name
			cpu, memory = sum(m)
		case *metrics.NodeMetrics:
			name, cpu, memory = m.Name, m.Usage[corev1.ResourceCPU], m.Usage[corev1.ResourceMemory]
		default:
			return fmt.Errorf("no table for %T", of)
		}
		table.Rows = append(table.Rows, metav1.TableRow{Object: runtime.RawExtension{Object: of}, Cells: []any{name, cpu.String(), memory.String(), usageWindow.String()}})
		return nil
	}
	if meta.IsListType(object) {
		return table, meta.EachListItem(object, row)
	}
	return table, row(object)
}

// sum returns what all containers of a Pod use.
func sum(m *metrics.PodMetrics) (cpu, memory resource.Quantity) {
	for _, c := range m.Containers {
		cpu.Add(c.Usage[corev1.ResourceCPU])
		memory.Add(c.Usage[corev1.ResourceMemory])
	}
	return cpu, memory
}
