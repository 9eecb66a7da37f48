package simulate

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/kubernetes/pkg/features"

	"time"
)

// deferredPoll is how often a resize without room is tried again.
const deferredPoll = time.Second

// resize changes the resources of containers that run, as the kubelet does (pkg/kubelet/allocation). The node first allocates
// them, or defers that, and then gives them to the containers, in a write of its own. What is allocated is in the status.
func (l *life) resize(status *corev1.PodStatus) {
	level := utilfeature.DefaultFeatureGate.Enabled(features.InPlacePodLevelResourcesVerticalScaling)
	if level && status.Resources == nil {
		status.AllocatedResources, status.Resources = podRequests(l.pod), podResources(l.pod)
	}
	changed := level && !equality.Semantic.DeepEqual(status.AllocatedResources, podRequests(l.pod))
	l.eachRunning(status, func(c *corev1.Container, is *corev1.ContainerStatus) {
		changed = changed || !equality.Semantic.DeepEqual(is.AllocatedResources, c.Resources.Requests)
	})
	if changed {
		if message, fits := l.fits(l.pod); !fits {
			set(status, l.pod.Generation, corev1.PodResizePending, corev1.ConditionTrue, corev1.PodReasonDeferred, message, l.now)
			l.wake(deferredPoll)
			return
		}
		l.eachRunning(status, func(c *corev1.Container, is *corev1.ContainerStatus) {
			is.AllocatedResources = c.Resources.Requests.DeepCopy()
		})
		if level {
			status.AllocatedResources = podRequests(l.pod)
		}
		unset(status, corev1.PodResizePending)
		set(status, l.pod.Generation, corev1.PodResizeInProgress, corev1.ConditionTrue, "", "", l.now)
		l.wake(0)
		return
	}
	unset(status, corev1.PodResizePending)
	ends := false // a container that has to restart
	l.eachRunning(status, func(c *corev1.Container, is *corev1.ContainerStatus) {
		was := is.Resources
		is.Resources = resourcesOf(c)
		for _, policy := range c.ResizePolicy {
			if policy.RestartPolicy == corev1.RestartContainer && was != nil && differ(was, is.Resources, policy.ResourceName) {
				if end := l.kill(c, is); end != nil {
					l.restart(c, is, end)
				} else {
					is.Resources, ends = was, true // the next look tries again
				}
				break
			}
		}
	})
	if ends {
		return
	}
	unset(status, corev1.PodResizeInProgress)
	if level {
		status.Resources = podResources(l.pod)
	}
}

// eachRunning calls do with each container that runs, ephemeral ones excepted.
func (l *life) eachRunning(status *corev1.PodStatus, do func(*corev1.Container, *corev1.ContainerStatus)) {
	each := func(containers []corev1.Container, statuses []corev1.ContainerStatus) {
		for i := range containers {
			if is := find(statuses, containers[i].Name); is != nil && is.State.Running != nil {
				do(&containers[i], is)
			}
		}
	}
	each(l.pod.Spec.InitContainers, status.InitContainerStatuses)
	each(l.pod.Spec.Containers, status.ContainerStatuses)
}

// resourcesOf returns what a container is given.
func resourcesOf(c *corev1.Container) *corev1.ResourceRequirements {
	r := c.Resources.DeepCopy()
	r.Claims = nil
	return r
}

func differ(a, b *corev1.ResourceRequirements, name corev1.ResourceName) bool {
	return !a.Requests[name].Equal(b.Requests[name]) || !a.Limits[name].Equal(b.Limits[name])
}

// podRequests and podResources return the resources of a whole Pod: its own, or the sums over its containers.
func podRequests(p *corev1.Pod) corev1.ResourceList {
	return resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
}

func podResources(p *corev1.Pod) *corev1.ResourceRequirements {
	return &corev1.ResourceRequirements{Requests: podRequests(p), Limits: resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})}
}

// allocated returns a Pod with the resources that its node has allocated to it.
func allocated(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	each := func(containers []corev1.Container, statuses []corev1.ContainerStatus) {
		for i := range containers {
			if is := find(statuses, containers[i].Name); is != nil && is.AllocatedResources != nil {
				containers[i].Resources.Requests = is.AllocatedResources
			}
		}
	}
	each(p.Spec.InitContainers, p.Status.InitContainerStatuses)
	each(p.Spec.Containers, p.Status.ContainerStatuses)
	if p.Spec.Resources != nil && p.Status.AllocatedResources != nil {
		p.Spec.Resources.Requests = p.Status.AllocatedResources
	}
	return p
}
