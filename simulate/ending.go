package simulate

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/utils/ptr"
)

// stopping returns how long the Pod's containers take to end within a grace period of so many seconds, and with which exit code.
func (l *life) stopping(seconds *int64) (takes time.Duration, code int32) {
	if !hasStarted(&l.pod.Status) {
		return 0, exitTerminated
	}
	grace := time.Duration(ptr.Deref(seconds, 0)) * time.Second
	if takes = l.script.stopAfter + longestPreStop(l.pod); takes > grace {
		return grace, exitKilled
	}
	return takes, exitTerminated
}

// kill tells a container that runs to end, because it has to run anew. It returns how the container has ended; nil while its grace period
// goes on.
func (l *life) kill(c *corev1.Container, status *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	key := "end of " + c.Name
	if _, told := l.times[key]; !told {
		l.times[key] = l.now
	}
	takes, code := l.stopping(l.pod.Spec.TerminationGracePeriodSeconds)
	if left := l.times[key].Add(takes).Sub(l.now); left > 0 {
		l.wake(left)
		return nil
	}
	delete(l.times, key)
	return terminated(status, code, reasonError, l.now)
}

// deadline ends a Pod that has been active for too long, and whose containers have had their time to end. It returns the exit code of
// what still runs when the Pod ends.
func (l *life) deadline(status *corev1.PodStatus) (code int32) {
	takes, code := l.stopping(l.pod.Spec.TerminationGracePeriodSeconds)
	if seconds := l.pod.Spec.ActiveDeadlineSeconds; seconds != nil && l.reached("", *status.StartTime, time.Duration(*seconds)*time.Second+takes) {
		status.Phase, status.Reason = corev1.PodFailed, reasonDeadline
		status.Message = "Pod was active on the node longer than the specified deadline"
	}
	return code
}

// end returns the status of a Pod that has been told to end. Its containers exit with code, unless they have ended before.
func (l *life) end(code int32) corev1.PodStatus {
	status := *l.pod.Status.DeepCopy()
	status.ObservedGeneration = l.pod.Generation
	l.endAll(&status, code)
	if status.Phase = corev1.PodSucceeded; len(status.ContainerStatuses) == 0 { // nothing has begun
		status.Phase = corev1.PodFailed
	}
	for _, c := range status.ContainerStatuses {
		if c.State.Terminated == nil || c.State.Terminated.ExitCode != 0 {
			status.Phase = corev1.PodFailed
		}
	}
	l.conditions(&status)
	return status
}

// endAll ends what still runs or waits in a Pod that has ended, as TerminatePod does (pkg/kubelet/status/status_manager.go).
func (l *life) endAll(status *corev1.PodStatus, code int32) {
	reason := reasonError
	if status.Phase == corev1.PodSucceeded {
		code, reason = 0, reasonCompleted
	}
	begun := l.hasInitialized(status)
	attempted := 1 // so many init containers
	for i, c := range status.InitContainerStatuses {
		if c.State.Waiting == nil || c.LastTerminationState.Terminated != nil {
			attempted = i + 1
		}
	}
	for kind, all := range [][]corev1.ContainerStatus{status.InitContainerStatuses, status.ContainerStatuses, status.EphemeralContainerStatuses} {
		for i := range all {
			c := &all[i]
			ranOut := c.State.Terminated != nil && c.Ready // an init container that has succeeded
			switch {
			case c.State.Running != nil:
				c.State = corev1.ContainerState{Terminated: terminated(c, code, reason, l.now.Truncate(time.Second))}
			case c.State.Waiting != nil && c.LastTerminationState.Terminated != nil: // it will not restart
				c.State, c.LastTerminationState = c.LastTerminationState, corev1.ContainerState{}
			case c.State.Terminated == nil && (kind == 0 && i < attempted || kind == 1 && begun):
				c.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: exitKilled, Reason: kubecontainer.ContainerReasonStatusUnknown,
					Message: "The container could not be located when the pod was terminated"}}
			}
			c.Started, c.Ready = new(bool), ranOut
		}
	}
}

// hasInitialized reports whether the containers were allowed to begin (the kubelet's hasPodInitialized).
func (l *life) hasInitialized(status *corev1.PodStatus) bool {
	last := len(l.pod.Spec.InitContainers) - 1
	if last < 0 || slices.ContainsFunc(status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.LastTerminationState.Terminated != nil || c.State.Waiting == nil
	}) {
		return true
	}
	c := find(status.InitContainerStatuses, l.pod.Spec.InitContainers[last].Name)
	if c == nil {
		return false
	}
	if podutil.IsRestartableInitContainer(&l.pod.Spec.InitContainers[last]) {
		return c.State.Running != nil && c.Started != nil && *c.Started
	}
	return c.State.Terminated != nil && c.State.Terminated.ExitCode == 0
}
