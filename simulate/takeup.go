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
	"k8s.io/apimachinery/pkg/types"
)

// nodeSet has the nodes by their names.
type nodeSet struct {
	mu     sync.RWMutex
	byName map[string]*node
}

func (s *nodeSet) get(name string) *node {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byName[name]
}

// find returns a node for which matches is true, or nil.
func (s *nodeSet) find(matches func(*node) bool) *node {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, n := range s.byName {
		if matches(n) {
			return n
		}
	}
	return nil
}

func (s *nodeSet) set(n *node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byName[n.name] = n
}

func (s *nodeSet) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byName, name)
}

// providerID returns the ID of a Node that the simulation has made. A copy of it with another name has not that ID.
func providerID(name string) string { return "simulated://" + name }

// isMade reports whether the simulation has made a Node, now or in an earlier start.
func isMade(o *corev1.Node) bool {
	index, err := strconv.Atoi(strings.TrimPrefix(o.Name, namePrefix))
	return err == nil && Name(index) == o.Name && IsNode(o) && o.Spec.ProviderID == providerID(o.Name)
}

// takeUpNodes registers missing nodes, and deletes those that an earlier start with more
// nodes has left. It touches no Node that somebody else has made.
func (s *simulation) takeUpNodes(ctx context.Context) error {
	var errs []error
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
		case numbered && !IsNode(o):
			errs = append(errs, fmt.Errorf("node %s exists and is not simulated (it has no label %s): delete it, or start without --simulate-nodes", o.Name, NodeLabel))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
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
	err := as(s.core.Post().Resource("nodes"), n.name).Body(s.object(n, now)).Do(ctx).Error()
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
	runtime := o.Status.NodeInfo.ContainerRuntimeVersion
	if !IsNode(o) || isMade(o) || runtime != "" && !strings.HasPrefix(runtime, "simulated://") {
		return false
	}
	s.adopting.Lock()
	defer s.adopting.Unlock()
	if s.nodes.get(o.Name) != nil {
		return true
	}
	index := indexOf(o)
	taken := func(n *node) bool { return n.index == index }
	for at := Most - 1; index < s.Nodes || s.nodes.find(taken) != nil; at-- { // from the end: a later start may have more nodes of its own
		if index = at; at < s.Nodes {
			s.Log.Warnf("simulated nodes: node %s is one too many: there can be %d", o.Name, Most)
			return false
		}
	}
	s.nodes.set(&node{name: o.Name, index: index, hosts: hostsOf(index, s.IPv6), down: IsDown(o)})
	return true
}

// indexOf returns the number of the node that reported an address, or -1.
func indexOf(o *corev1.Node) int {
	for _, a := range o.Status.Addresses {
		if at, err := netip.ParseAddr(a.Address); err == nil && at.Is4() && nodeRanges[0].Contains(at) {
			b, first := at.As4(), nodeRanges[0].Addr().As4()
			return (int(b[1])-int(first[1]))<<16 + int(b[2])<<8 + int(b[3]) - 1
		}
	}
	return -1
}

// abandon ends the simulation of a node that is gone, unless the server makes it.
func (s *simulation) abandon(name string) {
	if n := s.nodes.get(name); n != nil && n.index >= s.Nodes {
		s.nodes.remove(name)
		s.setDown(n, true) // for open connections
	}
}

// complete gives a Node that somebody else has made what a kubelet gives a Node that is there when it registers: labels, a range of
// addresses where no controller assigns it, and capacity.
func (s *simulation) complete(ctx context.Context, n *node, o *corev1.Node) error {
	labels := labelsOf(n)
	maps.DeleteFunc(labels, func(name, value string) bool { return o.Labels[name] == value })
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
		if err := as(s.core.Patch(types.StrategicMergePatchType).Resource("nodes").Name(n.name).SubResource(parts...), n.name).Body(body).Do(ctx).Error(); err != nil {
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
	return patch(map[string]any{"status": map[string]any{"capacity": capacity(), "allocatable": capacity()}}, "status")
}
