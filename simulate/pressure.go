package simulate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubelettypes "k8s.io/kubernetes/pkg/kubelet/types"
)

// evictionInterval is the time between two evictions, as the kubelet looks (pkg/kubelet/kubelet.go, evictionMonitoringPeriod).
const evictionInterval = 10 * time.Second

// pressures are the conditions of the values of NodePressure.
var pressures = map[string]corev1.NodeConditionType{
	"memory": corev1.NodeMemoryPressure, "disk": corev1.NodeDiskPressure, "pid": corev1.NodePIDPressure,
}

// resources are the kubelet's names of what is low (pkg/kubelet/eviction/helpers.go).
var resources = map[string]corev1.ResourceName{"memory": corev1.ResourceMemory, "disk": corev1.ResourceEphemeralStorage, "pid": "pids"}

// pressure returns one of a node's conditions, of which pressed is the one that is true.
func pressure(pressed, kind corev1.NodeConditionType, noReason, noMessage, reason, message string) corev1.NodeCondition {
	if pressed == kind {
		return corev1.NodeCondition{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message}
	}
	return corev1.NodeCondition{Type: kind, Status: corev1.ConditionFalse, Reason: noReason, Message: noMessage}
}

// reportedPressure returns the pressure that a Node reports, or nothing.
func reportedPressure(o *corev1.Node) corev1.NodeConditionType {
	for _, c := range o.Status.Conditions {
		for _, kind := range pressures {
			if c.Type == kind && c.Status == corev1.ConditionTrue {
				return kind
			}
		}
	}
	return ""
}

// evict evicts one Pod of a node under pressure, as the kubelet chooses it (pkg/kubelet/eviction/helpers.go): first those that use more
// than they request, then by priority, then by how much they use above their request. Critical Pods stay.
func (s *simulation) evict(ctx context.Context, n *node, resource string, now time.Time) error {
	if now.Sub(n.evicted) < evictionInterval {
		return nil
	}
	all := s.allPods()
	type candidate struct {
		pod      *corev1.Pod
		priority int32
		excess   int64
	}
	var candidates []candidate
	usage := NewUsage(s.Defaults, func() []*corev1.Pod { return all })
	for _, p := range all {
		if p.Spec.NodeName != n.name || podutil.IsPodPhaseTerminal(p.Status.Phase) || p.DeletionTimestamp != nil || !hasStarted(&p.Status) || kubelettypes.IsCriticalPod(p) {
			continue
		}
		c := candidate{pod: p}
		if p.Spec.Priority != nil {
			c.priority = *p.Spec.Priority
		}
		if resource == "memory" { // no container uses a disk or processes
			c.excess = excess(p, usage)
		}
		candidates = append(candidates, c)
	}
	if len(candidates) == 0 {
		return nil
	}
	exceeds := func(c candidate) int {
		if c.excess > 0 {
			return 0
		}
		return 1
	}
	victim := slices.MinFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(exceeds(a), exceeds(b)), cmp.Compare(a.priority, b.priority), cmp.Compare(b.excess, a.excess), cmp.Compare(a.pod.Name, b.pod.Name))
	}).pod
	message := fmt.Sprintf("The node was low on resource: %s. ", resources[resource])
	status := *victim.Status.DeepCopy()
	status.Phase, status.Reason, status.Message = corev1.PodFailed, "Evicted", message
	set(&status, victim.Generation, corev1.DisruptionTarget, corev1.ConditionTrue, corev1.PodReasonTerminationByKubelet, message, now)
	l := &life{pod: victim, now: now, times: map[string]time.Time{}}
	l.endAll(&status, exitKilled)
	l.conditions(&status)
	if _, err := s.putStatus(ctx, n, victim, status); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("evict pod %s/%s: %w", victim.Namespace, victim.Name, err)
	}
	n.evicted = now
	s.record(n, victim, []event{{corev1.EventTypeWarning, "Evicted", message}})
	return nil
}

// excess returns how much more memory a Pod uses than it requests.
func excess(p *corev1.Pod, usage *Usage) int64 {
	requested := podRequests(p)
	excess := -requested.Memory().Value()
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if c.State.Running != nil {
			of := usage.Of(p, c.Name)
			excess += of.Memory().Value()
		}
	}
	return excess
}
