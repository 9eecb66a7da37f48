package simulate

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
)

// life is a Pod at a moment. Everything about it except the exact times is in its status.
// So after a restart of the server it continues where it was, give or take the second to
// which the API rounds.
type life struct {
	pod    *corev1.Pod
	script podScript
	wrong  error                                         // in the annotations
	delay  error                                         // why the Pod cannot begin yet
	fits   func(*corev1.Pod) (message string, fits bool) // whether the Pod's node has room for its specification
	now    time.Time
	failed func() int32         // how many Pods of the same controller, and of the same index, have failed
	times  map[string]time.Time // of each container's last change
	hosts  []corev1.HostIP
	addrs  []corev1.PodIP

	again time.Duration // until something has to be done; 0: until the Pod changes
}

// wake asks for the next look after d.
func (l *life) wake(d time.Duration) {
	if d = max(d, time.Millisecond); l.again == 0 || d < l.again {
		l.again = d
	}
}

// moment returns now as the API stores it, and remembers the exact time for a container.
func (l *life) moment(name string) metav1.Time {
	l.times[name] = l.now
	return second(l.now)
}

// second returns a time as the API stores it.
func second(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }

// exactly returns the time of a container's last change. The API has only the second.
func (l *life) exactly(name string, t metav1.Time) time.Time {
	if exact, ok := l.times[name]; ok && exact.Truncate(time.Second).Equal(t.Time) {
		return exact
	}
	return t.Time
}

// reached reports whether d has passed since a container's change at t. If not, it asks for
// a look at that moment.
func (l *life) reached(name string, t metav1.Time, d time.Duration) bool {
	left := l.exactly(name, t).Add(d).Sub(l.now)
	if left > 0 {
		l.wake(left)
	}
	return left <= 0
}

// since is like reached, for a state without a time in the API. After a restart it assumes
// that the time has passed.
func (l *life) since(name string, d time.Duration) bool {
	exact, ok := l.times[name]
	return !ok || l.reached(name, second(exact), d)
}

// advance returns the Pod's status now.
func (l *life) advance() corev1.PodStatus {
	status := *l.pod.Status.DeepCopy()
	if podutil.IsPodPhaseTerminal(status.Phase) { // by another client, if something still runs
		l.endAll(&status, exitKilled)
		l.conditions(&status)
		return status
	}
	status.ObservedGeneration = l.pod.Generation
	if status.StartTime == nil {
		at := l.moment("")
		status.StartTime = &at
	}
	status.HostIPs, status.HostIP = l.hosts, l.hosts[0].IP
	l.condition(&status, corev1.PodScheduled, nil, "", "") // for a Pod that was created with a node name
	if status.Phase == "" {
		status.Phase = corev1.PodPending
	}
	l.showMistake(&status)
	if reason, message, held := l.held(&status); held {
		l.hold(&status, reason, message)
		if l.deadline(&status); status.Phase == corev1.PodFailed {
			l.endAll(&status, exitKilled)
		}
		l.conditions(&status)
		return status
	}
	status.PodIPs, status.PodIP = l.addrs, l.addrs[0].IP
	l.condition(&status, corev1.PodReadyToStartContainers, nil, "", "")
	initialized, failed := true, false
	if restarting := l.restartAll(&status); !restarting {
		initialized, failed = l.initialize(&status)
		l.runContainers(&status, initialized)
		l.resize(&status)
	}
	l.deadline(&status)
	if status.Phase != corev1.PodFailed {
		status.Phase = phaseOf(l.pod, &status, initialized, failed)
	}
	if podutil.IsPodPhaseTerminal(status.Phase) {
		code := int32(exitTerminated)
		if status.Reason != "" {
			code = exitKilled
		}
		l.endAll(&status, code)
	}
	l.conditions(&status)
	return status
}

// showMistake keeps a condition while an annotation cannot be understood. What runs goes on as it did.
func (l *life) showMistake(status *corev1.PodStatus) {
	if l.wrong != nil {
		set(status, l.pod.Generation, AnnotationsUnderstood, corev1.ConditionFalse, reasonAnnotation, l.wrong.Error(), l.now)
		return
	}
	unset(status, AnnotationsUnderstood)
}

// hasStarted reports whether the Pod has its addresses, and so is past its beginning.
func hasStarted(status *corev1.PodStatus) bool { return status.PodIP != "" }

// held reports whether the Pod cannot begin yet, and with which reason its containers wait. An empty one is the usual.
func (l *life) held(status *corev1.PodStatus) (reason, message string, held bool) {
	switch {
	case hasStarted(status):
		return "", "", false
	case l.wrong != nil:
		return reasonAnnotation, l.wrong.Error(), true
	case l.delay != nil:
		return reasonCreating, l.delay.Error(), true
	case l.script.mountError != "":
		return reasonCreating, mountFailed + l.script.mountError, true
	}
	return "", "", !l.reached("", *status.StartTime, l.script.startDelay)
}

// hold makes all containers wait.
func (l *life) hold(status *corev1.PodStatus, reason, message string) {
	usual := reasonCreating
	if len(l.pod.Spec.InitContainers) > 0 {
		usual = reasonInitializing
	}
	wait := func(containers []corev1.Container) (all []corev1.ContainerStatus) {
		for i := range containers {
			c := l.blank(&containers[i], nil)
			c.State.Waiting.Reason, c.State.Waiting.Message = usual, ""
			if reason != "" {
				c.State.Waiting.Reason, c.State.Waiting.Message = reason, message
			}
			all = append(all, c)
		}
		return all
	}
	status.InitContainerStatuses, status.ContainerStatuses = wait(l.pod.Spec.InitContainers), wait(l.pod.Spec.Containers)
	l.condition(status, corev1.PodReadyToStartContainers, []string{""}, "", "")
}

// initialize runs the init containers in order. It reports whether all have done what the
// others wait for, and whether one has failed for good.
func (l *life) initialize(status *corev1.PodStatus) (initialized, failed bool) {
	was := status.InitContainerStatuses
	status.InitContainerStatuses = nil
	initialized = true
	begun := slices.ContainsFunc(status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.ContainerID != ""
	})
	for i := range l.pod.Spec.InitContainers {
		c := &l.pod.Spec.InitContainers[i]
		var now corev1.ContainerStatus
		switch {
		case podutil.IsRestartableInitContainer(c) && (initialized || begun):
			now = l.run(c, find(was, c.Name))
			initialized = initialized && (*now.Started || begun)
		case !initialized || begun:
			now = l.blank(c, find(was, c.Name))
			if w := now.State.Waiting; w != nil && w.Reason != reasonCrash {
				w.Reason, w.Message = reasonInitializing, ""
			}
		default:
			now = l.run(c, find(was, c.Name))
			ended := now.State.Terminated
			now.Ready = ended != nil && ended.ExitCode == 0
			initialized, failed = now.Ready, ended != nil && ended.ExitCode != 0
		}
		status.InitContainerStatuses = append(status.InitContainerStatuses, now)
	}
	return initialized || begun, failed
}

func (l *life) runContainers(status *corev1.PodStatus, initialized bool) {
	was := status.ContainerStatuses
	status.ContainerStatuses = nil
	for i := range l.pod.Spec.Containers {
		c := &l.pod.Spec.Containers[i]
		var now corev1.ContainerStatus
		if initialized {
			now = l.run(c, find(was, c.Name))
		} else {
			now = l.blank(c, find(was, c.Name))
			now.State.Waiting = &corev1.ContainerStateWaiting{Reason: reasonInitializing}
		}
		status.ContainerStatuses = append(status.ContainerStatuses, now)
	}
	wasEphemeral := status.EphemeralContainerStatuses
	status.EphemeralContainerStatuses = nil
	for i := range l.pod.Spec.EphemeralContainers {
		c := corev1.Container(l.pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		now := l.run(&c, find(wasEphemeral, c.Name))
		now.Started, now.Ready = nil, false // it has no probes
		status.EphemeralContainerStatuses = append(status.EphemeralContainerStatuses, now)
	}
}

// deadline ends a Pod that has been active for too long, as the kubelet does.
func (l *life) deadline(status *corev1.PodStatus) {
	if seconds := l.pod.Spec.ActiveDeadlineSeconds; seconds != nil && l.reached("", *status.StartTime, time.Duration(*seconds)*time.Second) {
		status.Phase, status.Reason = corev1.PodFailed, reasonDeadline
		status.Message = "Pod was active on the node longer than the specified deadline"
	}
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

// phaseOf is getPhase of the kubelet (pkg/kubelet/kubelet_pods.go).
func phaseOf(pod *corev1.Pod, status *corev1.PodStatus, initialized, failed bool) corev1.PodPhase {
	if failed {
		return corev1.PodFailed
	}
	if !initialized {
		return corev1.PodPending
	}
	running, waiting, stopped, succeeded := 0, 0, 0, 0
	for i, c := range status.ContainerStatuses {
		switch {
		case c.State.Running != nil:
			running++
		case c.State.Terminated != nil:
			stopped++
			if c.State.Terminated.ExitCode == 0 {
				succeeded++
			}
			if shouldRestart(&pod.Spec.Containers[i], pod, c.State.Terminated.ExitCode) {
				running++
			}
		case c.LastTerminationState.Terminated != nil: // it will restart
			running++
		default:
			waiting++
		}
	}
	switch {
	case waiting > 0:
		return corev1.PodPending
	case running > 0:
		return corev1.PodRunning
	case stopped == succeeded:
		return corev1.PodSucceeded
	default:
		return corev1.PodFailed
	}
}

// conditions sets those that the kubelet writes.
func (l *life) conditions(status *corev1.PodStatus) {
	var incomplete, unready []string
	for _, c := range status.InitContainerStatuses { // with any name: others can write the status too
		sidecar := slices.ContainsFunc(l.pod.Spec.InitContainers, func(of corev1.Container) bool { return of.Name == c.Name && podutil.IsRestartableInitContainer(&of) })
		started := c.Started != nil && *c.Started
		if sidecar && !started || !sidecar && !c.Ready {
			incomplete = append(incomplete, c.Name)
		}
		if sidecar && !c.Ready {
			unready = append(unready, c.Name)
		}
	}
	begun := false
	for _, c := range status.ContainerStatuses {
		begun = begun || c.ContainerID != ""
		if !c.Ready {
			unready = append(unready, c.Name)
		}
	}
	switch {
	case status.Phase == corev1.PodSucceeded:
		l.condition(status, corev1.PodInitialized, nil, "PodCompleted", "")
	case begun:
		l.condition(status, corev1.PodInitialized, nil, "", "")
	default:
		l.condition(status, corev1.PodInitialized, incomplete, "ContainersNotInitialized", "containers with incomplete status: %s")
	}
	l.restarting(status)
	switch status.Phase {
	case corev1.PodSucceeded:
		l.notReady(status, "PodCompleted", "")
	case corev1.PodFailed:
		l.notReady(status, "PodFailed", "")
	default:
		if len(unready) > 0 {
			l.notReady(status, "ContainersNotReady", fmt.Sprintf("containers with unready status: %s", unready))
			return
		}
		l.condition(status, corev1.ContainersReady, nil, "", "")
		l.condition(status, corev1.PodReady, l.closedGates(status), "ReadinessGatesNotReady", "")
	}
}
