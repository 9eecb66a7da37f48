package simulate

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/features"
)

// The kubelet's reasons.
const (
	reasonCreating     = "ContainerCreating"
	reasonInitializing = "PodInitializing"
	reasonPull         = "ErrImagePull"
	reasonPullBackOff  = "ImagePullBackOff"
	reasonCrash        = "CrashLoopBackOff"
	reasonCompleted    = "Completed"
	reasonError        = "Error"
	reasonRestartAll   = "RestartingAllContainers"
	reasonDeadline     = "DeadlineExceeded" // a Pod's

	// The simulation's own: an annotation cannot be understood.
	reasonAnnotation = "SimulationError"
)

// AnnotationsUnderstood is the type of a condition that a Pod has, with the status False, while one of its annotations cannot be understood.
const AnnotationsUnderstood = Prefix + "annotations-understood"

// Exit codes of a container that is told to end.
const (
	exitTerminated = 143 // by SIGTERM
	exitKilled     = 137 // by SIGKILL
)

// longRun is how long a container has to run for its back-off to begin again.
const longRun = 2 * mostBackOff

// run returns the next state of a container that may run. It is at most one change after
// the last, so that a watch sees each. Waiting and started count as one.
func (l *life) run(c *corev1.Container, was *corev1.ContainerStatus) corev1.ContainerStatus {
	status := l.blank(c, was)
	s := l.attempt(l.script.containers[c.Name], status.RestartCount)
	switch state := &status.State; {
	case state.Terminated != nil:
		if l.ended(c, &status, s); status.State.Running == nil {
			status.Ready, status.Started = false, new(bool)
			return status
		}
	case state.Running != nil:
		if l.perhapsEnd(c, &status, s); status.State.Running != nil && s.unhealthyAfter != forever && l.reached(c.Name, status.State.Running.StartedAt, s.unhealthyAfter) {
			if end := l.kill(c, &status); end != nil {
				status.State = corev1.ContainerState{Terminated: end}
				l.ended(c, &status, s)
			}
		}
	case s.pullError && status.ImageID != imageID(c):
		l.failToPull(c, &status)
	case s.startError != "":
		status.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: s.startError, Message: "simulated, as annotation " + StartError + " has it"}}
	case state.Waiting != nil && state.Waiting.Reason == reasonCrash && status.LastTerminationState.Terminated != nil:
		ended := status.LastTerminationState.Terminated
		if status.Image != c.Image || l.reached(c.Name, ended.FinishedAt, backOff(s, status.RestartCount)) {
			l.start(c, &status)
		}
	default:
		l.start(c, &status)
		if s.runFor == 0 { // an init container with nothing to do
			l.perhapsEnd(c, &status, s)
		}
	}
	for _, d := range []time.Duration{s.runFor, s.unhealthyAfter} {
		if running := status.State.Running; running != nil && d != forever && l.reached(c.Name, running.StartedAt, d) {
			l.wake(0) // it has just started, and ends in a write of its own
		}
	}
	l.judge(c, &status, s)
	return status
}

// attempt returns what a container does this time, if it fails some times.
func (l *life) attempt(s script, restarts int32) script {
	if s.fails == 0 && s.chance == 0 {
		return s
	}
	attempt := restarts + l.failed()
	if s.fails > 0 && attempt >= s.fails || s.chance > 0 && s.draw(100, attempt) >= s.chance {
		s.exitCode, s.exitReason, s.runFor = 0, "", s.usual
	}
	return s
}

// blank returns a status as it was, or that of a container that has never run.
func (l *life) blank(c *corev1.Container, was *corev1.ContainerStatus) corev1.ContainerStatus {
	if was != nil {
		status := *was.DeepCopy()
		status.RestartCount = max(status.RestartCount, 0) // the API accepts others, and the back-off would not grow
		l.describe(c, &status)
		return status
	}
	status := corev1.ContainerStatus{Name: c.Name, Image: c.Image, Started: new(bool),
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reasonCreating}}}
	return status
}

// describe sets what the container has once it has run.
func (l *life) describe(c *corev1.Container, status *corev1.ContainerStatus) {
	if status.ContainerID == "" || status.State.Running == nil {
		return
	}
	if status.Resources == nil { // later changes are a resize
		status.AllocatedResources = c.Resources.Requests.DeepCopy()
		status.Resources = resourcesOf(c)
	}
	if status.Image != c.Image { // the image of a running Pod may change: that is another container
		if end := l.kill(c, status); end != nil {
			status.LastTerminationState = corev1.ContainerState{Terminated: end}
			status.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reasonCreating}}
		}
	}
}

// imageID returns the ID of a container's image.
func imageID(c *corev1.Container) string { return "simulated://" + hash(c.Image) }

// start makes the container run.
func (l *life) start(c *corev1.Container, status *corev1.ContainerStatus) {
	status.Image = c.Image
	status.ImageID = imageID(c)
	if status.ContainerID != "" {
		status.RestartCount++
	}
	status.ContainerID = "simulated://" + hash(string(l.pod.UID), c.Name, strconv.Itoa(int(status.RestartCount)))[len("sha256:"):]
	status.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: l.moment(c.Name)}}
	l.describe(c, status)
}

// restart makes a container that has ended run again.
func (l *life) restart(c *corev1.Container, status *corev1.ContainerStatus, ended *corev1.ContainerStateTerminated) {
	status.LastTerminationState = corev1.ContainerState{Terminated: ended}
	l.start(c, status)
}

// perhapsEnd ends a container that has run long enough, and starts it again where the Pod
// wants that.
func (l *life) perhapsEnd(c *corev1.Container, status *corev1.ContainerStatus, s script) {
	started := status.State.Running.StartedAt
	if s.runFor == forever || !l.reached(c.Name, started, s.runFor) {
		return
	}
	reason := s.exitReason
	switch {
	case reason != "":
	case s.exitCode == 0:
		reason = reasonCompleted
	default:
		reason = reasonError
	}
	ranFor := l.now.Sub(l.exactly(c.Name, started))
	end := terminated(status, s.exitCode, reason, l.now)
	end.FinishedAt, end.Message = l.moment(c.Name), s.message
	status.State = corev1.ContainerState{Terminated: end}
	if ranFor >= longRun && shouldRestart(c, l.pod, end.ExitCode) && !restartsAll(c, end) {
		l.restart(c, status, end)
		return
	}
	l.ended(c, status, s)
}

// ended has a container that has ended run again, where the Pod wants that: at once, or after a back-off. It may have been another
// client who wrote that the container has ended.
func (l *life) ended(c *corev1.Container, status *corev1.ContainerStatus, s script) {
	end := status.State.Terminated
	switch wait := backOff(s, status.RestartCount); {
	case restartsAll(c, end) || !shouldRestart(c, l.pod, end.ExitCode):
	case wait == 0:
		l.restart(c, status, end)
	default:
		if end.FinishedAt.IsZero() {
			end.FinishedAt = l.moment(c.Name)
		}
		status.LastTerminationState = corev1.ContainerState{Terminated: end}
		status.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reasonCrash, Message: fmt.Sprintf(
			"back-off %v restarting failed container=%s pod=%s_%s(%s)", wait, c.Name, l.pod.Name, l.pod.Namespace, l.pod.UID)}}
		l.wake(wait)
	}
}

// failToPull returns the state of a container whose image cannot be pulled: it fails, and
// then waits.
func (l *life) failToPull(c *corev1.Container, status *corev1.ContainerStatus) {
	status.Image = c.Image
	const seen = time.Second // how long the error is visible before the wait for the next attempt
	message := fmt.Sprintf("simulated: failed to pull image %q, as annotation %s has it", c.Image, ImagePullError)
	waiting := status.State.Waiting
	switch {
	case waiting == nil || waiting.Reason == reasonCreating || waiting.Reason == reasonInitializing || waiting.Reason == reasonAnnotation:
		l.moment(c.Name)
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: reasonPull, Message: message}
		l.wake(seen)
	case waiting.Reason == reasonPull && l.since(c.Name, seen):
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: reasonPullBackOff, Message: fmt.Sprintf("Back-off pulling image %q: %s", c.Image, message)}
	}
}

// judge sets whether the container is started and ready.
func (l *life) judge(c *corev1.Container, status *corev1.ContainerStatus, s script) {
	running := status.State.Running
	started := running != nil
	status.Started = &started
	status.Ready = started && l.reached(c.Name, running.StartedAt, s.readyAfter) &&
		(s.notReadyAfter == forever || !l.reached(c.Name, running.StartedAt, s.notReadyAfter))
}

// terminated returns the end of a container that runs, or that never ran.
func terminated(status *corev1.ContainerStatus, code int32, reason string, at time.Time) *corev1.ContainerStateTerminated {
	ended := &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, FinishedAt: metav1.NewTime(at), ContainerID: status.ContainerID}
	if status.State.Running != nil {
		ended.StartedAt = status.State.Running.StartedAt
	}
	return ended
}

// backOff returns how long a container waits after so many restarts, as the kubelet does:
// before the first one not at all.
func backOff(s script, restarts int32) time.Duration {
	if restarts == 0 {
		return 0
	}
	wait := s.backOff
	for range restarts - 1 {
		if wait *= 2; wait >= mostBackOff {
			return max(mostBackOff, s.backOff)
		}
	}
	return wait
}

// shouldRestart reports whether an ended container starts again. Upstream decides, except
// for init containers, which are done once they have succeeded, and ephemeral ones.
func shouldRestart(c *corev1.Container, pod *corev1.Pod, code int32) bool {
	is := func(i corev1.Container) bool { return i.Name == c.Name }
	switch {
	case slices.ContainsFunc(pod.Spec.InitContainers, is):
		if code == 0 && !podutil.IsRestartableInitContainer(c) {
			return false
		}
	case !slices.ContainsFunc(pod.Spec.Containers, is):
		return false
	}
	return podutil.ContainerShouldRestart(*c, pod.Spec, code)
}

// restartsAll reports whether the end of a container restarts all containers of its Pod.
func restartsAll(c *corev1.Container, end *corev1.ContainerStateTerminated) bool {
	rule, ok := podutil.FindMatchingContainerRestartRule(*c, end.ExitCode)
	return ok && rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers &&
		utilfeature.DefaultFeatureGate.Enabled(features.RestartAllContainersOnContainerExits)
}

// anyRestartsAll reports whether one of the containers has ended like that.
func (l *life) anyRestartsAll(status *corev1.PodStatus) bool {
	statuses := slices.Concat(status.InitContainerStatuses, status.ContainerStatuses)
	return slices.ContainsFunc(slices.Concat(l.pod.Spec.InitContainers, l.pod.Spec.Containers), func(c corev1.Container) bool {
		is := find(statuses, c.Name)
		return is != nil && is.State.Terminated != nil && restartsAll(&c, is.State.Terminated)
	})
}

// restartAll removes all containers if the end of one of them asks for it, as the kubelet does (pkg/kubelet/kuberuntime). Then they
// run anew, the init containers first. It reports whether it has.
func (l *life) restartAll(status *corev1.PodStatus) bool {
	if !l.anyRestartsAll(status) {
		return false
	}
	for _, of := range [][]corev1.ContainerStatus{status.InitContainerStatuses, status.ContainerStatuses} {
		for i := range of {
			if c := &of[i]; c.State.Waiting == nil {
				const removed = "The container is removed because RestartAllContainers in place"
				c.LastTerminationState = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reasonRestartAll, Message: removed, ExitCode: exitKilled}}
				c.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reasonRestartAll, Message: removed}}
				c.ContainerID, c.Ready, c.Started = "", false, new(bool)
				c.RestartCount++
			}
		}
	}
	l.wake(0)
	return true
}

// statusesOf returns the statuses of all containers of a Pod.
func statusesOf(status *corev1.PodStatus) []corev1.ContainerStatus {
	return slices.Concat(status.InitContainerStatuses, status.ContainerStatuses, status.EphemeralContainerStatuses)
}

func hash(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
		h.Write([]byte{0})
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}
