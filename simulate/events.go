package simulate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolsrecord "k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/kubelet/events"
)

// mountFailed begins the kubelet's message about volumes.
const mountFailed = "Unable to attach or mount volumes: "

// event is one that a kubelet records.
type event struct{ kind, reason, message string }

// eventsOf returns the events of a change of a Pod's status: warnings, and, if its script wants that, also the kubelet's normal ones. A Pod
// that has to wait pulls its images for so long.
func eventsOf(p *corev1.Pod, is *corev1.PodStatus, script *podScript) (found []event) {
	was, pull := &p.Status, script.startDelay
	add := func(kind, reason, format string, args ...any) {
		if script.events || kind == corev1.EventTypeWarning {
			found = append(found, event{kind, reason, fmt.Sprintf(format, args...)})
		}
	}
	before := statusesOf(was)
	for _, c := range statusesOf(is) {
		old := find(before, c.Name)
		if old == nil {
			old = &corev1.ContainerStatus{}
		}
		if c.State.Running != nil && (old.State.Running == nil || old.ContainerID != c.ContainerID) {
			if pull > 0 && c.RestartCount == 0 {
				add(corev1.EventTypeNormal, events.PulledImage, "Successfully pulled image %q in %v (%[2]v including waiting). Image size: 0 bytes.", c.Image, pull)
			} else {
				add(corev1.EventTypeNormal, events.PulledImage, "Container image %q already present on machine", c.Image)
			}
			add(corev1.EventTypeNormal, events.CreatedContainer, "Container created")
			add(corev1.EventTypeNormal, events.StartedContainer, "Container started")
		}
		if failedLiveness(old, &c, script.containers[c.Name].unhealthyAfter) {
			add(corev1.EventTypeWarning, events.ContainerUnhealthy, "Liveness probe failed: simulated")
			add(corev1.EventTypeNormal, events.KillingContainer, "Container %s failed liveness probe, will be restarted", c.Name)
		}
		if why := killedFor(p, old, &c); why != "" {
			add(corev1.EventTypeNormal, events.KillingContainer, "Container %s %s", c.Name, why)
		}
		if c.State.Running != nil && old.State.Running != nil && old.Ready && !c.Ready && hasReadinessProbe(p, c.Name) {
			add(corev1.EventTypeWarning, events.ContainerUnhealthy, "Readiness probe failed: simulated")
		}
		if waiting := c.State.Waiting; waiting != nil && (old.State.Waiting == nil || old.State.Waiting.Reason != waiting.Reason) {
			switch waiting.Reason {
			case reasonCrash:
				add(corev1.EventTypeWarning, events.BackOffStartContainer, "Back-off restarting failed container %s in pod %s_%s(%s)", c.Name, p.Name, p.Namespace, p.UID)
			case reasonPull:
				add(corev1.EventTypeNormal, events.PullingImage, "Pulling image %q", c.Image)
				add(corev1.EventTypeWarning, events.FailedToPullImage, "Failed to pull image %q: %s", c.Image, waiting.Message)
				add(corev1.EventTypeWarning, events.FailedToPullImage, "Error: %s", reasonPull)
			case reasonPullBackOff:
				add(corev1.EventTypeNormal, events.BackOffPullImage, "%s", waiting.Message)
				add(corev1.EventTypeWarning, events.FailedToPullImage, "Error: %s", reasonPullBackOff)
			case reasonCreating:
				if pull > 0 && waiting.Message == "" {
					add(corev1.EventTypeNormal, events.PullingImage, "Pulling image %q", c.Image)
				}
			case reasonInitializing, reasonRestartAll, reasonAnnotation:
			default:
				add(corev1.EventTypeWarning, events.FailedToStartContainer, "Error: %s", waiting.Message)
			}
		}
	}
	if held := holdOf(is); strings.HasPrefix(held, mountFailed) && held != holdOf(was) {
		add(corev1.EventTypeWarning, events.FailedMountVolume, "%s", held)
	} else if held != "" && held != holdOf(was) {
		add(corev1.EventTypeWarning, events.FailedCreatePodSandBox, "Failed to create pod sandbox: %s", held)
	}
	if _, wrong := podutil.GetPodCondition(is, AnnotationsUnderstood); wrong != nil {
		if _, old := podutil.GetPodCondition(was, AnnotationsUnderstood); old == nil || old.Message != wrong.Message {
			add(corev1.EventTypeWarning, reasonAnnotation, "%s", wrong.Message)
		}
	}
	if is.Reason == reasonDeadline && was.Reason != is.Reason {
		add(corev1.EventTypeNormal, reasonDeadline, "%s", is.Message)
	}
	resizeEvents(p, is, add)
	return found
}

// resizeEvents adds the events of a resize.
func resizeEvents(p *corev1.Pod, is *corev1.PodStatus, add func(kind, reason, format string, args ...any)) {
	log := klog.Background()
	_, wasPending := podutil.GetPodCondition(&p.Status, corev1.PodResizePending)
	_, wasGoing := podutil.GetPodCondition(&p.Status, corev1.PodResizeInProgress)
	_, pending := podutil.GetPodCondition(is, corev1.PodResizePending)
	_, going := podutil.GetPodCondition(is, corev1.PodResizeInProgress)
	switch {
	case pending != nil && (wasPending == nil || wasPending.ObservedGeneration != pending.ObservedGeneration):
		add(corev1.EventTypeWarning, events.ResizeDeferred, "%s", events.PodResizePendingMsg(log, p, pending.Reason, pending.Message, p.Generation))
	case going != nil && wasGoing == nil:
		add(corev1.EventTypeNormal, events.ResizeStarted, "%s", events.PodResizeStartedMsg(log, p, p.Generation))
	case going == nil && wasGoing != nil:
		add(corev1.EventTypeNormal, events.ResizeCompleted, "%s", events.PodResizeCompletedMsg(log, p, p.Generation))
	}
}

// holdOf returns why a Pod's first container cannot be created, or nothing.
func holdOf(status *corev1.PodStatus) string {
	for _, c := range status.ContainerStatuses {
		if w := c.State.Waiting; w != nil && w.Reason == reasonCreating {
			return w.Message
		}
	}
	return ""
}

// failedLiveness reports whether a container was told to end because its liveness probe fails so long after its start.
func failedLiveness(old, is *corev1.ContainerStatus, after time.Duration) bool {
	if after == forever || old.State.Running == nil || is.State.Running != nil && is.ContainerID == old.ContainerID {
		return false
	}
	ended := cmp.Or(is.State.Terminated, is.LastTerminationState.Terminated)
	return ended != nil && (ended.ExitCode == exitTerminated || ended.ExitCode == exitKilled) && ended.FinishedAt.Sub(old.State.Running.StartedAt.Time) >= after
}

// killedFor returns why a container that ran was told to end in a Pod that goes on, or nothing.
func killedFor(p *corev1.Pod, old, is *corev1.ContainerStatus) string {
	if old.State.Running == nil || is.State.Running != nil && is.ContainerID == old.ContainerID || is.State.Terminated != nil {
		return ""
	}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		switch {
		case c.Name != is.Name:
		case c.Image != old.Image:
			return "definition changed, will be restarted"
		case is.Resources != nil && old.Resources != nil && !equality.Semantic.DeepEqual(is.Resources, old.Resources):
			return "resize requires restart"
		}
	}
	return ""
}

// killing returns the events of containers that are told to end.
func killing(p *corev1.Pod) (found []event) {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if c.State.Running != nil {
			found = append(found, event{corev1.EventTypeNormal, events.KillingContainer, "Stopping container " + c.Name})
		}
	}
	return found
}

func hasReadinessProbe(p *corev1.Pod, container string) bool {
	return slices.ContainsFunc(slices.Concat(p.Spec.InitContainers, p.Spec.Containers), func(c corev1.Container) bool {
		return c.Name == container && c.ReadinessProbe != nil
	})
}

// record records events of a Pod, as its node's kubelet. Like a kubelet's, they are counted together and limited.
func (s *simulation) record(n *node, p *corev1.Pod, all []event) {
	if len(all) == 0 {
		return
	}
	recorder := s.recorder("kubelet", n.name)
	for _, e := range all {
		recorder.Event(p, e.kind, e.reason, e.message)
	}
}

// recorder returns a recorder of events; host is the node that records them, or empty.
func (s *simulation) recorder(component, host string) toolsrecord.EventRecorder {
	return s.events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component, Host: host})
}

// eventSink writes events with the identity of their node.
type eventSink struct{ core rest.Interface }

func (s eventSink) of(r *rest.Request, e *corev1.Event) *rest.Request {
	if r = r.Namespace(e.Namespace).Resource("events"); e.Source.Host != "" {
		return as(r, e.Source.Host)
	}
	return r
}

// Create implements toolsrecord.EventSink.
func (s eventSink) Create(e *corev1.Event) (written *corev1.Event, err error) {
	written = &corev1.Event{}
	return written, s.of(s.core.Post(), e).Body(e).Do(context.Background()).Into(written)
}

// Update implements toolsrecord.EventSink.
func (s eventSink) Update(e *corev1.Event) (written *corev1.Event, err error) {
	written = &corev1.Event{}
	return written, s.of(s.core.Put(), e).Name(e.Name).Body(e).Do(context.Background()).Into(written)
}

// Patch implements toolsrecord.EventSink.
func (s eventSink) Patch(e *corev1.Event, patch []byte) (written *corev1.Event, err error) {
	written = &corev1.Event{}
	return written, s.of(s.core.Patch(types.StrategicMergePatchType), e).Name(e.Name).Body(patch).Do(context.Background()).Into(written)
}

var _ toolsrecord.EventSink = eventSink{}
