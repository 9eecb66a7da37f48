package simulate

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	nodeutil "k8s.io/component-helpers/node/util"
)

// The kubelet's own intervals (pkg/kubelet/apis/config/v1beta1/defaults.go).
const (
	leaseSeconds = 40
	reportStatus = 5 * time.Minute
)

// defaultGrace is how long the node lifecycle controller waits for a silent node, unless a
// user sets --node-monitor-grace-period.
const defaultGrace = 50 * time.Second

// renewInterval is the time between two renewals of a lease; one that fails is repeated soon. A
// kubelet renews its lease every ten seconds, because there is a network between it and the
// controller.
func renewInterval(grace time.Duration) time.Duration {
	if grace <= 0 {
		grace = defaultGrace
	}
	return max(min(grace, defaultGrace)/2, time.Second)
}

// slots is the number of groups of nodes that renew their leases together. So a hundred
// nodes need one timer and few commits, and no group is larger.
const slots = 10

// KubeletPort is the port that nodes report for their kubelet. Nothing listens there; see
// Kubelet.
const KubeletPort = 10250

// node is one simulated node.
type node struct {
	name  string
	index int
	hosts []corev1.HostIP

	// Only its worker uses the following.
	lease    *coordinationv1.Lease
	renewed  time.Time
	reported time.Time
	wrong    string // in its annotations, as it was last logged
	evicted  time.Time

	cpu counters

	mu   sync.Mutex
	down bool
}

const (
	namePrefix = "simulated-"
	// runtimeName begins the version of the runtime that nodes report.
	runtimeName = "simulated://"
)

// Name returns the name of node i.
func Name(index int) string { return fmt.Sprintf("%s%d", namePrefix, index) }

func newNode(index int, ipv6 []bool) *node {
	return &node{name: Name(index), index: index, hosts: hostsOf(index, ipv6)}
}

// hostsOf returns a node's own addresses.
func hostsOf(index int, ipv6 []bool) (hosts []corev1.HostIP) {
	for _, six := range ipv6 {
		hosts = append(hosts, corev1.HostIP{IP: nodeAddress(index, six).String()})
	}
	return hosts
}

func (n *node) isDown() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.down
}

// setDown reports whether that is a change.
func (n *node) setDown(down bool) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	changed := n.down != down
	n.down = down
	return changed
}

// answers returns an error while nothing on the node does.
func (n *node) answers() error {
	if n.isDown() {
		return fmt.Errorf("%w: node %s is down", ErrSimulated, n.name)
	}
	return nil
}

// key is the node's among connections.
func (n *node) key() types.NamespacedName { return types.NamespacedName{Name: n.name} }

// setDown makes a node silent, or ends that. It reports whether that is a change.
func (s *simulation) setDown(n *node, down bool) bool {
	changed := n.setDown(down)
	if changed {
		s.connections.Review(n.key())
	}
	return changed
}

// describe sets what a node reports about itself, and what no other client may change.
func (s *simulation) describe(n *node, status *corev1.NodeStatus) {
	status.Addresses = nil
	for _, h := range n.hosts {
		status.Addresses = append(status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: h.IP})
	}
	status.Addresses = append(status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: n.name})
	status.DaemonEndpoints.KubeletEndpoint.Port = KubeletPort
	id := strings.TrimPrefix(hash("node", n.name), "sha256:")
	status.DeclaredFeatures = s.declared
	status.NodeInfo = corev1.NodeSystemInfo{
		MachineID: id[:32], SystemUUID: fmt.Sprintf("%s-%s-%s-%s-%s", id[:8], id[8:12], id[12:16], id[16:20], id[20:32]),
		BootID:        fmt.Sprintf("%s-%s-%s-%s-%s", id[32:40], id[40:44], id[44:48], id[48:52], id[52:64]),
		KernelVersion: "simulated", OSImage: "simulated", ContainerRuntimeVersion: runtimeName + strings.TrimPrefix(s.Version, "v"),
		KubeletVersion: s.Version, OperatingSystem: "linux", Architecture: "amd64",
	}
}

// conditionsOf returns a node's conditions at its next report.
func conditionsOf(n *node, o *corev1.Node, now time.Time) []corev1.NodeCondition {
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "simulated kubelet is posting ready status"}
	if o != nil && isTrue(o.Annotations, NodeNotReady) {
		ready = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "annotation " + NodeNotReady + " says so"}
	}
	if o != nil {
		if err := checkNode(o.Annotations); err != nil {
			ready.Message += "; " + err.Error()
		}
	}
	pressed := corev1.NodeConditionType("")
	if o != nil {
		pressed = pressures[o.Annotations[NodePressure]]
	}
	all := []corev1.NodeCondition{
		pressure(pressed, corev1.NodeMemoryPressure, "KubeletHasSufficientMemory", "kubelet has sufficient memory available", "KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
		pressure(pressed, corev1.NodeDiskPressure, "KubeletHasNoDiskPressure", "kubelet has no disk pressure", "KubeletHasDiskPressure", "kubelet has disk pressure"),
		pressure(pressed, corev1.NodePIDPressure, "KubeletHasSufficientPID", "kubelet has sufficient PID available", "KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
		ready,
	}
	for i := range all {
		c := &all[i]
		c.LastHeartbeatTime, c.LastTransitionTime = second(now), second(now)
		if o == nil {
			continue
		}
		if _, was := nodeutil.GetNodeCondition(&o.Status, c.Type); was != nil && was.Status == c.Status {
			c.LastTransitionTime = was.LastTransitionTime
		}
	}
	return all
}

// nodeEvents handles the events of Node objects.
func (s *simulation) nodeEvents() cache.ResourceEventHandler {
	look := func(object any) {
		if o, ok := object.(*corev1.Node); ok && (s.nodes.get(o.Name) != nil || s.adopt(o)) {
			s.due.Add(o.Name)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: look,
		UpdateFunc: func(old, object any) {
			was, is := old.(*corev1.Node), object.(*corev1.Node)
			switch { // nothing else concerns the node, least of all its own reports
			case IsNode(was) && !IsNode(is):
				s.Log.Infof("simulated nodes: node %s has no label %s now", is.Name, NodeLabel)
				s.abandon(is.Name)
			case was.UID != is.UID, !sameOwn(was.Annotations, is.Annotations), readiness(was) != readiness(is), !IsNode(was) && IsNode(is):
				look(is)
			}
		},
		// One of the server's nodes comes back with its next heartbeat: someone who deletes it wants
		// to see what happens to its Pods. Another node is gone.
		DeleteFunc: func(object any) {
			if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			if o, ok := object.(*corev1.Node); ok {
				s.abandon(o.Name)
			}
		},
	}
}

func readiness(o *corev1.Node) corev1.ConditionStatus {
	if _, c := nodeutil.GetNodeCondition(&o.Status, corev1.NodeReady); c != nil {
		return c.Status
	}
	return corev1.ConditionUnknown
}

// syncNode does everything that is due for a node.
func (s *simulation) syncNode(ctx context.Context, name string) (time.Duration, error) {
	n, now := s.nodes.get(name), time.Now()
	if n == nil {
		return 0, nil
	}
	object, there, err := s.NodeInformer.GetStore().GetByKey(name)
	if err != nil {
		return 0, err
	}
	if !there {
		if now.Sub(n.reported) < time.Second { // the informer has not seen it yet
			return time.Second, nil
		}
		return s.nextRenewal(n, now), s.register(ctx, n)
	}
	o := object.(*corev1.Node)
	s.checkNode(n, o)
	down := IsDown(o)
	if s.setDown(n, down) {
		s.lookAtPodsOf(name)
	}
	if down {
		return 0, nil
	}
	if !isMade(o) {
		if err := s.complete(ctx, n, o); err != nil {
			return 0, err
		}
	}
	if now.Sub(n.renewed) >= s.interval/2 { // the first slot may come early
		if err := s.renew(ctx, n, o, now); err != nil {
			return 0, err
		}
	}
	want := corev1.ConditionTrue
	if isTrue(o.Annotations, NodeNotReady) {
		want = corev1.ConditionFalse
	}
	pressed := pressures[o.Annotations[NodePressure]]
	if now.Sub(n.reported) >= reportStatus || readiness(o) != want || pressed != reportedPressure(o) {
		if err := s.report(ctx, n, o, now); err != nil {
			return 0, err
		}
	}
	again := s.nextRenewal(n, now)
	if pressed != "" {
		return min(again, evictionInterval), s.evict(ctx, n, o.Annotations[NodePressure], now)
	}
	return again, nil
}

// checkNode logs what is wrong with a node's annotations, once, and has it reported.
func (s *simulation) checkNode(n *node, o *corev1.Node) {
	wrong := ""
	if err := checkNode(o.Annotations); err != nil {
		wrong = err.Error()
	}
	if wrong == n.wrong {
		return
	}
	n.wrong, n.reported = wrong, time.Time{}
	if wrong != "" {
		s.Log.Warnf("simulated nodes: node %s: %s", n.name, wrong)
	}
}

// nextRenewal returns the time until the node's next slot. Slot i begins after i tenths of
// each interval. The first renewal comes after half an interval at the earliest, and after one and a half at the latest.
func (s *simulation) nextRenewal(n *node, now time.Time) time.Duration {
	at := now.Truncate(s.interval).Add(time.Duration(n.index%slots) * s.interval / slots)
	for at.Sub(n.renewed) < s.interval/2 || !at.After(now) {
		at = at.Add(s.interval)
	}
	return at.Sub(now)
}

// renew writes the node's lease.
func (s *simulation) renew(ctx context.Context, n *node, o *corev1.Node, now time.Time) error {
	leases := func(verb string) string { return fmt.Sprintf("%s lease of node %s", verb, n.name) }
	micro := metav1.NewMicroTime(now)
	if n.lease != nil && len(n.lease.OwnerReferences) > 0 && n.lease.OwnerReferences[0].UID == o.UID {
		next := n.lease.DeepCopy()
		next.Spec.RenewTime = &micro
		next.ManagedFields = []metav1.ManagedFieldsEntry{{}} // from now on, the API server tracks none for this lease
		written := &coordinationv1.Lease{}
		err := as(s.coordination.Put().Namespace(corev1.NamespaceNodeLease).Resource("leases").Name(n.name), n.name).Body(next).Do(ctx).Into(written)
		if err == nil {
			n.lease, n.renewed = written, now
			return nil
		}
		n.lease = nil
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("%s: %w", leases("renew"), err)
		}
	}
	seconds := int32(leaseSeconds)
	lease := &coordinationv1.Lease{}
	err := as(s.coordination.Get().Namespace(corev1.NamespaceNodeLease).Resource("leases").Name(n.name), n.name).Do(ctx).Into(lease)
	create := apierrors.IsNotFound(err)
	if err != nil && !create {
		return fmt.Errorf("%s: %w", leases("read"), err)
	}
	lease.ObjectMeta.Name, lease.ObjectMeta.Namespace = n.name, corev1.NamespaceNodeLease
	lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.name, UID: o.UID}}
	lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &n.name, LeaseDurationSeconds: &seconds, RenewTime: &micro}
	request := s.coordination.Put().Name(n.name)
	if create {
		request = s.coordination.Post()
	}
	written := &coordinationv1.Lease{}
	if err := as(request.Namespace(corev1.NamespaceNodeLease).Resource("leases"), n.name).Body(lease).Do(ctx).Into(written); err != nil {
		return fmt.Errorf("%s: %w", leases("write"), err)
	}
	written.ManagedFields = nil
	n.lease, n.renewed = written, now
	return nil
}

// report writes the node's status. It keeps the capacity and everything else that a user
// may change.
func (s *simulation) report(ctx context.Context, n *node, o *corev1.Node, now time.Time) error {
	status := corev1.NodeStatus{Conditions: conditionsOf(n, o, now)}
	s.describe(n, &status)
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"conditions": status.Conditions, "addresses": status.Addresses, "daemonEndpoints": status.DaemonEndpoints, "nodeInfo": status.NodeInfo,
		"declaredFeatures": status.DeclaredFeatures,
	}})
	if err != nil {
		return err
	}
	err = as(s.core.Patch(types.StrategicMergePatchType).Resource("nodes").Name(n.name).SubResource("status"), n.name).Body(patch).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("report status of node %s: %w", n.name, err)
	}
	n.reported = now
	return nil
}
