package simulate

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// record is what the simulation knows about a Pod besides its object. Only the Pod's worker
// uses it.
type record struct {
	uid     types.UID
	written string               // the resourceVersion of the last write; the informer may be behind
	times   map[string]time.Time // see life; nil if nothing waits for a time
	addrs   []netip.Addr         // nil: none yet, or given back
	script  *podScript           // the last that could be understood; nil: none since the start
	deleted time.Time            // when the deletion was seen
}

// podEvents handles the events of Pods.
func (s *simulation) podEvents() cache.ResourceEventHandler {
	look := func(object any) {
		if p, ok := object.(*corev1.Pod); ok && s.nodes.get(p.Spec.NodeName) != nil {
			s.pods.Add(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
		}
	}
	gone := func(object any) { // also a Pod whose node is gone
		if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = last.Obj
		}
		if p, ok := object.(*corev1.Pod); ok && p.Spec.NodeName != "" {
			s.pods.Add(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, p any) { look(p) }, DeleteFunc: gone}
}

// takeUpPods records the addresses of existing Pods, before one of them is assigned again.
func (s *simulation) takeUpPods() {
	for _, object := range s.PodInformer.GetStore().List() {
		p := object.(*corev1.Pod)
		if s.nodes.get(p.Spec.NodeName) == nil || p.Spec.HostNetwork || podutil.IsPodPhaseTerminal(p.Status.Phase) {
			continue
		}
		s.recordOf(types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, p)
	}
}

// lookAtPodsOf queues all Pods of a node.
func (s *simulation) lookAtPodsOf(node string) {
	s.lookAtPods(func(p *corev1.Pod) bool { return p.Spec.NodeName == node })
}

// lookAtPods queues the Pods that matter to the caller.
func (s *simulation) lookAtPods(matters func(*corev1.Pod) bool) {
	for _, object := range s.PodInformer.GetStore().List() {
		if p := object.(*corev1.Pod); matters(p) {
			s.pods.Add(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
		}
	}
}

// recordOf returns the record of a Pod: a new one if another Pod has that name now.
func (s *simulation) recordOf(key types.NamespacedName, p *corev1.Pod) *record {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.records[key]
	if r != nil && r.uid == p.UID {
		return r
	}
	if r != nil {
		s.giveBack(key, r)
	}
	r = &record{uid: p.UID}
	s.records[key] = r
	if p.Spec.HostNetwork {
		return r
	}
	for _, ip := range p.Status.PodIPs {
		if at, err := netip.ParseAddr(ip.IP); err == nil {
			s.addresses.keep(at, key)
			r.addrs = append(r.addrs, at)
		}
	}
	return r
}

// forget removes the record of a Pod that is gone.
func (s *simulation) forget(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.records[key]; r != nil {
		s.giveBack(key, r)
		delete(s.records, key)
	}
}

func (s *simulation) giveBack(key types.NamespacedName, r *record) {
	for _, at := range r.addrs {
		s.addresses.giveBack(at, key)
	}
	r.addrs = nil
}

// addressPoll is how often a Pod without an address looks for one. Its node may get a range a moment after it registers, and
// other Pods end.
const addressPoll = 500 * time.Millisecond

// syncPod brings a Pod to where it should be by now.
func (s *simulation) syncPod(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	s.connections.Review(key) // the Pod, its Namespace or its node has changed
	object, there, err := s.PodInformer.GetStore().GetByKey(key.String())
	if err != nil {
		return 0, err
	}
	if !there {
		s.forget(key)
		return 0, nil
	}
	p := object.(*corev1.Pod)
	n := s.nodes.get(p.Spec.NodeName)
	if n == nil || n.isDown() { // the Pod is queued again when the node is back
		return 0, nil
	}
	if !s.Defaults.known(p.Namespace) && p.DeletionTimestamp == nil { // its annotations may say how the Pod begins
		return 0, nil // the Pod is queued again when the Namespace is there
	}
	r := s.recordOf(key, p)
	if order, err := resourceversion.CompareResourceVersion(p.ResourceVersion, r.written); err == nil && order < 0 {
		return 0, nil // the event of our own write is still to come, and queues the Pod again
	}
	l := &life{pod: p, now: time.Now(), times: r.times, hosts: n.hosts}
	if l.times == nil {
		l.times = map[string]time.Time{}
	}
	if l.script, l.wrong = readScript(p, s.Defaults); l.wrong == nil {
		r.script = &l.script
	} else if r.script != nil { // it goes on as before
		l.script = *r.script
	} else {
		l.script = runningOn(p)
	}
	if p.DeletionTimestamp != nil {
		return s.endPod(ctx, n, r, l)
	}
	if podutil.IsPodPhaseTerminal(p.Status.Phase) {
		s.giveBack(key, r)
		if !anyRuns(&p.Status) {
			return 0, nil
		}
	} else if l.addrs, l.delay = s.addressesOf(key, r, n, p); l.delay != nil {
		l.wake(addressPoll)
	}
	l.failed = func() int32 { return s.failedBefore(p) }
	l.fits = func(p *corev1.Pod) (string, bool) { return s.fits(n, p) }
	status := l.advance()
	if err := s.write(ctx, n, r, l, status); err != nil {
		return 0, err
	}
	if r.times = l.times; l.again == 0 {
		r.times = nil
	}
	return l.again, nil
}

// fits reports whether a node has room for a Pod as it wants to be now, beside what is allocated to others. Two Pods that ask at the
// same moment may get the same room.
func (s *simulation) fits(n *node, p *corev1.Pod) (message string, fits bool) {
	object, there, err := s.NodeInformer.GetStore().GetByKey(n.name)
	if err != nil || !there {
		return "the node is not there", false
	}
	var others []*corev1.Pod
	for _, object := range s.PodInformer.GetStore().List() {
		if other := object.(*corev1.Pod); other.Spec.NodeName == n.name && other.UID != p.UID && !podutil.IsPodPhaseTerminal(other.Status.Phase) {
			others = append(others, allocated(other))
		}
	}
	info := framework.NewNodeInfo(others...)
	info.SetNode(object.(*corev1.Node))
	for _, result := range scheduler.AdmissionCheck(p, info, true) {
		if missing := result.InsufficientResource; missing != nil {
			return (&lifecycle.InsufficientResourceError{ResourceName: missing.ResourceName, Requested: missing.Requested, Used: missing.Used, Capacity: missing.Capacity}).Error(), false
		}
	}
	return "", true
}

// failedBefore returns how many Pods of a Pod's controller have failed, in an indexed Job those of its index.
func (s *simulation) failedBefore(p *corev1.Pod) (failed int32) {
	owner := metav1.GetControllerOf(p)
	if owner == nil {
		return 0
	}
	for _, object := range s.PodInformer.GetStore().List() {
		other := object.(*corev1.Pod)
		if metav1.IsControlledBy(other, &metav1.ObjectMeta{UID: owner.UID}) && other.Status.Phase == corev1.PodFailed &&
			other.Annotations[batchv1.JobCompletionIndexAnnotation] == p.Annotations[batchv1.JobCompletionIndexAnnotation] {
			failed++
		}
	}
	return failed
}

// anyRuns reports whether a container runs.
func anyRuns(status *corev1.PodStatus) bool {
	return slices.ContainsFunc(statusesOf(status), func(c corev1.ContainerStatus) bool {
		return c.State.Running != nil
	})
}

// addressesOf returns a Pod's addresses. A Pod without addresses gets some, and keeps them
// until it has ended.
func (s *simulation) addressesOf(key types.NamespacedName, r *record, n *node, p *corev1.Pod) ([]corev1.PodIP, error) {
	var all []corev1.PodIP
	if p.Spec.HostNetwork {
		for _, h := range n.hosts {
			all = append(all, corev1.PodIP(h))
		}
		return all, nil
	}
	if r.addrs == nil {
		object, there, err := s.NodeInformer.GetStore().GetByKey(n.name)
		if err != nil || !there {
			return nil, err
		}
		for _, from := range rangesOf(object.(*corev1.Node)) {
			at, err := s.addresses.take(from, key)
			if err != nil {
				s.giveBack(key, r)
				return nil, fmt.Errorf("node %s: %w", n.name, err)
			}
			r.addrs = append(r.addrs, at)
		}
	}
	if r.addrs == nil {
		return nil, fmt.Errorf("node %s has no range of Pod addresses (spec.podCIDR)", n.name)
	}
	for _, at := range r.addrs {
		all = append(all, corev1.PodIP{IP: at.String()})
	}
	return all, nil
}

// write writes a Pod's status if it has changed.
func (s *simulation) write(ctx context.Context, n *node, r *record, l *life, status corev1.PodStatus) error {
	p := l.pod
	if equality.Semantic.DeepEqual(status, p.Status) {
		return nil
	}
	written, err := s.putStatus(ctx, n, p, status)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("write status of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	r.written = written.ResourceVersion
	s.record(n, p, eventsOf(p, &status, &l.script))
	return nil
}

// putStatus writes a Pod's status with the resourceVersion that was read, so it never undoes another client's write.
func (s *simulation) putStatus(ctx context.Context, n *node, p *corev1.Pod, status corev1.PodStatus) (written *corev1.Pod, err error) {
	next := &corev1.Pod{ObjectMeta: p.ObjectMeta, Spec: p.Spec, Status: status}
	written = &corev1.Pod{}
	return written, as(s.core.Put().Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("status"), n.name).Body(next).Do(ctx).Into(written)
}

// endPod ends a Pod that is being deleted: after the time that its annotation says, and at
// the latest after its grace period.
func (s *simulation) endPod(ctx context.Context, n *node, r *record, l *life) (time.Duration, error) {
	p := l.pod
	var grace time.Duration
	if p.DeletionGracePeriodSeconds != nil {
		grace = time.Duration(*p.DeletionGracePeriodSeconds) * time.Second
	}
	if r.deleted.IsZero() {
		r.deleted = l.now
		if l.script.events {
			s.record(n, p, killing(p))
		}
		if asked := p.DeletionTimestamp.Add(-grace); l.now.Sub(asked) > 2*time.Second { // before this start
			r.deleted = asked
		}
	}
	takes, code := l.stopping(p.DeletionGracePeriodSeconds)
	if podutil.IsPodPhaseTerminal(p.Status.Phase) {
		takes = 0
	}
	if left := r.deleted.Add(takes).Sub(l.now); left > 0 {
		return left, nil
	}
	// Before it is gone, everybody sees how it ended (kubelet: since 1.27).
	if !podutil.IsPodPhaseTerminal(p.Status.Phase) {
		if err := s.write(ctx, n, r, l, l.end(code)); err != nil {
			return 0, err
		}
	}
	if len(p.Finalizers) > 0 && grace == 0 { // it was deleted, and waits for others
		return 0, nil
	}
	zero := int64(0)
	err := as(s.core.Delete().Namespace(p.Namespace).Resource("pods").Name(p.Name), n.name).
		Body(&metav1.DeleteOptions{GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &p.UID}}).Do(ctx).Error()
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err): // another Pod has that name
		return 0, nil
	default:
		return 0, fmt.Errorf("delete pod %s/%s: %w", p.Namespace, p.Name, err)
	}
}

// longestPreStop returns how long the Pod's hooks sleep before it ends.
func longestPreStop(p *corev1.Pod) (longest time.Duration) {
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) { // init containers are sidecars
		if hook := c.Lifecycle; hook != nil && hook.PreStop != nil && hook.PreStop.Sleep != nil {
			longest = max(longest, time.Duration(hook.PreStop.Sleep.Seconds)*time.Second)
		}
	}
	return longest
}
