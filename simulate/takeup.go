package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/karve-k8s/karve/simulate/groups"
)

// nodeSet has the nodes by their names and by their numbers.
type nodeSet struct {
	mu      sync.RWMutex
	byName  map[string]*node
	byIndex map[int]*node
}

func newNodeSet() *nodeSet { return &nodeSet{byName: map[string]*node{}, byIndex: map[int]*node{}} }

func (s *nodeSet) get(name string) *node {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byName[name]
}

// at returns the node with a number, or nil.
func (s *nodeSet) at(index int) *node {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byIndex[index]
}

func (s *nodeSet) set(n *node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byName[n.name], s.byIndex[n.index] = n, n
}

func (s *nodeSet) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.byName[name]; n != nil {
		delete(s.byName, name)
		delete(s.byIndex, n.index)
	}
}

// object returns the Node as it registers.
func (s *simulation) object(n *node, now time.Time) *corev1.Node {
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: labelsOf(n)}}
	o.Labels[NodeLabel] = ""
	o.Spec.ProviderID = providerID(n.name)
	o.Status.Capacity = s.capacityOf(n)
	if g := s.groupOf(n.index); g != nil {
		maps.Copy(o.Labels, g.Labels)
		o.Spec.Taints = g.Taints
	}
	o.Status.Allocatable = o.Status.Capacity.DeepCopy()
	if !s.PodCIDRs {
		o.Spec.PodCIDRs = s.rangesFor(n)
		o.Spec.PodCIDR = o.Spec.PodCIDRs[0]
	}
	s.describe(n, &o.Status)
	o.Status.Conditions = conditionsOf(n, nil, now)
	return o
}

// labelsOf returns the labels that a kubelet gives its Node.
func labelsOf(n *node) map[string]string {
	return groups.Labels(strings.TrimRight(n.name[:min(len(n.name), validation.LabelValueMaxLength)], "-.")) // a name may be longer than a label
}

// capacityOf returns what a node has, unless a user changes it.
func (s *simulation) capacityOf(n *node) corev1.ResourceList {
	has := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("110"),
		"hugepages-1Gi": resource.MustParse("0"), "hugepages-2Mi": resource.MustParse("0"),
	}
	if g := s.groupOf(n.index); g != nil {
		maps.Copy(has, g.Capacity)
	}
	return has
}

// rangesFor returns the ranges of a node's Pod addresses, where no controller assigns them.
func (s *simulation) rangesFor(n *node) (ranges []string) {
	for _, six := range s.IPv6 {
		ranges = append(ranges, podRangeOf(n.index, six).String())
	}
	return ranges
}

// groupOf returns the group of a node of the server, or nil.
func (s *simulation) groupOf(index int) *groups.Group {
	for i := range s.Groups {
		if index < s.Groups[i].Nodes {
			return &s.Groups[i]
		}
		index -= s.Groups[i].Nodes
	}
	return nil
}

// providerID returns the ID of a Node that the simulation has made. A copy of it with another name has not that ID.
func providerID(name string) string { return "simulated://" + name }

// isMade reports whether the simulation has made a Node, now or in an earlier start.
func isMade(o *corev1.Node) bool {
	index, err := strconv.Atoi(strings.TrimPrefix(o.Name, namePrefix))
	return err == nil && Name(index) == o.Name && IsNode(o) && o.Spec.ProviderID == providerID(o.Name)
}

// takeUpNodes registers missing nodes, takes over Nodes with the names of missing ones, and deletes those that an earlier start with more
// nodes has left. It leaves alone a Node for which another kubelet reports, and fails only if no node is left.
func (s *simulation) takeUpNodes(ctx context.Context) error {
	var errs, foreign []error
	for _, object := range s.NodeInformer.GetStore().List() {
		o := object.(*corev1.Node)
		numbered := s.isNumbered(o.Name)
		switch {
		case !numbered && isMade(o):
			s.Log.Infof("simulated nodes: taking %s away, which is one too many", o.Name)
			err := s.core.Delete().Resource("nodes").Name(o.Name).Do(ctx).Error()
			if err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("delete node %s: %w", o.Name, err))
			}
			s.nodes.remove(o.Name)
		case numbered && reportsElsewhere(o):
			err := fmt.Errorf("node %s exists and is not simulated: a kubelet of %s reports for it. Delete it and start again, or choose --%s so that no simulated node has its name", o.Name, o.Status.NodeInfo.ContainerRuntimeVersion, groups.Option)
			foreign = append(foreign, err)
			s.nodes.remove(o.Name)
		case numbered && !IsNode(o):
			patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:""}}}`, NodeLabel)
			if err := s.core.Patch(types.StrategicMergePatchType).Resource("nodes").Name(o.Name).Body(patch).Do(ctx).Error(); err != nil {
				errs = append(errs, fmt.Errorf("take node %s over: %w", o.Name, err))
			}
		}
		if numbered && isMade(o) && !s.isAsAsked(o) {
			s.Log.Warnf("simulated nodes: node %s has other labels or another capacity than --%s says: delete it, and it comes back with those", o.Name, groups.Option)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if len(foreign) == s.Nodes && s.Nodes > 0 {
		return errors.Join(foreign...)
	}
	for _, err := range foreign {
		s.Notice("simulated nodes: " + err.Error())
	}
	missing := make(chan *node)
	var wait sync.WaitGroup
	var mu sync.Mutex
	for range nodeWorkers {
		wait.Go(func() {
			for n := range missing {
				if err := s.register(ctx, n); err != nil && ctx.Err() == nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for i := range s.Nodes {
		n := s.nodes.get(Name(i))
		if n == nil { // somebody else's
			continue
		}
		object, there, _ := s.NodeInformer.GetStore().GetByKey(n.name)
		if there {
			s.setDown(n, IsDown(object.(*corev1.Node))) // before one of its Pods is looked at
		} else {
			missing <- n
		}
		s.due.Add(n.name) // its lease is old
	}
	close(missing)
	wait.Wait()
	return errors.Join(errs...)
}

func (s *simulation) register(ctx context.Context, n *node) error {
	now := time.Now()
	// An administrator makes the Node, because a kubelet may not set every label that a user wants.
	err := s.core.Post().Resource("nodes").Body(s.object(n, now)).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("register node %s: %w", n.name, err)
	}
	n.reported = now
	return nil
}

// isNumbered reports whether a node is one of those that the server makes.
func (s *simulation) isNumbered(name string) bool {
	n := s.nodes.get(name)
	return n != nil && n.index < s.Nodes
}

// adopt simulates a Node with the simulation's label that somebody else has made, if no kubelet has reported for it. It returns
// whether that is so.
func (s *simulation) adopt(o *corev1.Node) bool {
	if !IsNode(o) || isMade(o) || reportsElsewhere(o) {
		return false
	}
	s.adopting.Lock()
	defer s.adopting.Unlock()
	if s.nodes.get(o.Name) != nil {
		return true
	}
	index := indexOf(o)
	for range Most {
		if index >= s.Nodes && s.nodes.at(index) == nil {
			break
		}
		if s.nextIndex--; s.nextIndex < s.Nodes { // from the end: a later start may have more nodes of its own
			s.nextIndex = Most - 1
		}
		index = s.nextIndex
	}
	if index < s.Nodes || s.nodes.at(index) != nil {
		s.Log.Warnf("simulated nodes: node %s is one too many: there can be %d", o.Name, Most)
		return false
	}
	s.nodes.set(&node{name: o.Name, index: index, hosts: hostsOf(index, s.IPv6), down: IsDown(o)})
	return true
}

// indexOf returns the number of the node that reported an address, or -1.
func indexOf(o *corev1.Node) int {
	for _, a := range o.Status.Addresses {
		if at, err := netip.ParseAddr(a.Address); err == nil && indexAt(at) >= 0 {
			return indexAt(at)
		}
	}
	return -1
}

// reportsElsewhere reports whether another kubelet reports for a Node.
func reportsElsewhere(o *corev1.Node) bool {
	runtime := o.Status.NodeInfo.ContainerRuntimeVersion
	return runtime != "" && !strings.HasPrefix(runtime, runtimeName)
}

// isAsAsked reports whether one of the server's Nodes has what its group says.
func (s *simulation) isAsAsked(o *corev1.Node) bool {
	g := s.groupOf(s.nodes.get(o.Name).index)
	if g == nil {
		return true
	}
	for name, value := range g.Labels {
		if has, there := o.Labels[name]; !there || has != value {
			return false
		}
	}
	for name, value := range g.Capacity {
		if has, there := o.Status.Capacity[name]; !there || has.Cmp(value) != 0 {
			return false
		}
	}
	return true
}

// abandon ends the simulation of a node that is gone, or whose user has taken the label away, unless the server makes it.
func (s *simulation) abandon(name string) {
	if n := s.nodes.get(name); n != nil && n.index >= s.Nodes {
		s.nodes.remove(name)
		s.setDown(n, true) // for open connections
	}
}

// complete gives a Node that somebody else has made what a kubelet gives a Node that is there when it registers: labels, a range of
// addresses where no controller assigns it, and capacity.
func (s *simulation) complete(ctx context.Context, n *node, o *corev1.Node) error {
	labels, has := labelsOf(n), s.capacityOf(n)
	if g := s.groupOf(n.index); g != nil {
		maps.Copy(labels, g.Labels)
	}
	maps.DeleteFunc(labels, func(name, value string) bool {
		is, there := o.Labels[name]
		return there && (is == value || name == corev1.LabelHostname) // a host may have another name than its Node
	})
	change := map[string]any{}
	if len(labels) > 0 {
		change["metadata"] = map[string]any{"labels": labels}
	}
	if !s.PodCIDRs && o.Spec.PodCIDR == "" {
		ranges := s.rangesFor(n)
		change["spec"] = map[string]any{"podCIDR": ranges[0], "podCIDRs": ranges}
	}
	patch := func(change map[string]any, parts ...string) error {
		body, err := json.Marshal(change)
		if err != nil {
			return err
		}
		if err := s.core.Patch(types.StrategicMergePatchType).Resource("nodes").Name(n.name).SubResource(parts...).Body(body).Do(ctx).Error(); err != nil {
			return fmt.Errorf("complete node %s: %w", n.name, err)
		}
		return nil
	}
	if len(change) > 0 {
		if err := patch(change); err != nil {
			return err
		}
	}
	if len(o.Status.Capacity) > 0 {
		return nil
	}
	n.reported = time.Time{} // the rest follows
	return patch(map[string]any{"status": map[string]any{"capacity": has, "allocatable": has}}, "status")
}
