package simulate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/features"
	kubeletstatus "k8s.io/kubernetes/pkg/kubelet/status"
)

// restarting sets the condition of Pods whose containers may all restart at the end of one of them.
func (l *life) restarting(status *corev1.PodStatus) {
	if !podutil.AllContainersCouldRestart(&l.pod.Spec) || !utilfeature.DefaultFeatureGate.Enabled(features.RestartAllContainersOnContainerExits) {
		return
	}
	state, reason, message := corev1.ConditionFalse, "", ""
	switch {
	case status.Phase == corev1.PodSucceeded:
		reason = kubeletstatus.PodCompleted
	case status.Phase == corev1.PodFailed:
		reason = kubeletstatus.PodFailed
	case l.anyRestartsAll(status):
		state, reason, message = corev1.ConditionTrue, kubeletstatus.RestartAllContainersStarted, "container exited with restart policy rule"
	}
	set(status, l.pod.Generation, corev1.AllContainersRestarting, state, reason, message, l.now)
}

func (l *life) notReady(status *corev1.PodStatus, reason, message string) {
	set(status, l.pod.Generation, corev1.ContainersReady, corev1.ConditionFalse, reason, message, l.now)
	set(status, l.pod.Generation, corev1.PodReady, corev1.ConditionFalse, reason, message, l.now)
}

// closedGates returns the readiness gates without a true condition.
func (l *life) closedGates(status *corev1.PodStatus) (closed []string) {
	for _, gate := range l.pod.Spec.ReadinessGates {
		i := slices.IndexFunc(status.Conditions, func(c corev1.PodCondition) bool { return c.Type == gate.ConditionType })
		switch {
		case i < 0:
			closed = append(closed, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		case status.Conditions[i].Status != corev1.ConditionTrue:
			closed = append(closed, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", gate.ConditionType, status.Conditions[i].Status))
		}
	}
	return closed
}

// condition sets a condition to true, or to false if something is missing. %s in the
// message stands for the list of that; an empty message is the list.
func (l *life) condition(status *corev1.PodStatus, kind corev1.PodConditionType, missing []string, reason, message string) {
	state := corev1.ConditionTrue
	switch {
	case len(missing) == 0:
		message = ""
		if reason != "PodCompleted" {
			reason = ""
		}
	case message == "":
		state, message = corev1.ConditionFalse, strings.Join(missing, ", ")
	default:
		state, message = corev1.ConditionFalse, fmt.Sprintf(message, missing)
	}
	set(status, l.pod.Generation, kind, state, reason, message, l.now)
}

// set changes this condition only: others have other owners.
func set(status *corev1.PodStatus, generation int64, kind corev1.PodConditionType, state corev1.ConditionStatus, reason, message string, now time.Time) {
	i := slices.IndexFunc(status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if i < 0 {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind})
		i = len(status.Conditions) - 1
	}
	c := &status.Conditions[i]
	if c.Status != state {
		c.LastTransitionTime = second(now)
	}
	c.Status, c.Reason, c.Message, c.ObservedGeneration = state, reason, message, generation
}

func unset(status *corev1.PodStatus, kind corev1.PodConditionType) {
	status.Conditions = slices.DeleteFunc(status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
}

func find(all []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}
