package simulate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/features"
	kubeletstatus "k8s.io/kubernetes/pkg/kubelet/status"
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
		if code := l.deadline(&status); status.Phase == corev1.PodFailed {
			l.endAll(&status, code)
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
	code := l.deadline(&status)
	if status.Phase != corev1.PodFailed {
		status.Phase = phaseOf(l.pod, &status, initialized, failed)
	}
	if podutil.IsPodPhaseTerminal(status.Phase) {
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
