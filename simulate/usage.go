package simulate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What a container without an annotation uses: next to nothing.
var (
	idleCPU    = resource.MustParse("1m")
	idleMemory = resource.MustParse("8Mi")
)

// Usage is what containers use at one moment, as annotations and defaults have it.
type Usage struct {
	defaults Defaults
	pods     func() []*corev1.Pod
	replicas map[types.UID]int64 // running Pods of each controller; nil: not counted yet
}

// NewUsage returns the usage at this moment. pods returns all that may share a load.
func NewUsage(defaults Defaults, pods func() []*corev1.Pod) *Usage {
	return &Usage{defaults: defaults, pods: pods}
}

// Of returns how much CPU and memory a running container of a Pod uses. Annotations that cannot be understood count as missing.
func (u *Usage) Of(p *corev1.Pod, container string) corev1.ResourceList {
	annotations, where, _ := u.defaults.with(p)
	whole := slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == container })
	r := &reader{annotations: annotations, where: where, container: container, whole: whole, pod: p}
	return corev1.ResourceList{
		corev1.ResourceCPU:    u.share(r, CPULoad, r.quantity(CPUUsage, idleCPU)),
		corev1.ResourceMemory: u.share(r, MemoryLoad, r.quantity(MemoryUsage, idleMemory)),
	}
}

// share returns a container's part of a load, or its usage if it has no part.
func (u *Usage) share(r *reader, load string, used resource.Quantity) resource.Quantity {
	if r.text(load) == "" {
		return used
	}
	all, parts := r.quantity(load, used), u.replicasOf(r.pod)
	if _, own := r.own(load); !own {
		parts *= int64(len(r.pod.Spec.Containers))
	}
	all.SetMilli(all.MilliValue() / parts)
	return all
}

// replicasOf returns how many Pods of a Pod's controller run, at least 1.
func (u *Usage) replicasOf(p *corev1.Pod) int64 {
	if u.replicas == nil {
		u.replicas = map[types.UID]int64{}
		for _, p := range u.pods() {
			if owner := metav1.GetControllerOfNoCopy(p); owner != nil && p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				u.replicas[owner.UID]++
			}
		}
	}
	if owner := metav1.GetControllerOfNoCopy(p); owner != nil {
		return max(u.replicas[owner.UID], 1)
	}
	return 1
}
