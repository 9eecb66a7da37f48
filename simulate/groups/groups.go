// Package groups reads what kinds of simulated nodes a user wants.
package groups

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	helper "k8s.io/kubernetes/pkg/apis/core/v1/helper"
	taintutils "k8s.io/kubernetes/pkg/util/taints"
)

// Option is the option of the server with the simulated nodes.
const Option = "simulate-nodes"

// Group is a number of nodes of one kind. What it does not say is as with every simulated node.
type Group struct {
	Nodes    int
	Labels   map[string]string
	Taints   []corev1.Taint
	Capacity corev1.ResourceList
}

// Labels returns those that a kubelet gives its Node.
func Labels(host string) map[string]string {
	return map[string]string{
		corev1.LabelHostname: host, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
	}
}

// The short names of labels.
var shortLabels = map[string]string{"zone": corev1.LabelTopologyZone, "region": corev1.LabelTopologyRegion, "instance-type": corev1.LabelInstanceTypeStable}

// own are the resources of every machine.
var own = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods}

// Parse reads a group of nodes: NUMBER,NAME=VALUE,… A name is zone, region, instance-type, label:KEY, or a resource such as cpu or
// nvidia.com/gpu. taint:KEY=VALUE:EFFECT is a taint.
func Parse(text string) (Group, error) {
	wrong := func(format string, args ...any) (Group, error) {
		return Group{}, fmt.Errorf("--%s %s: %s", Option, text, fmt.Sprintf(format, args...))
	}
	parts := strings.Split(text, ",")
	g := Group{Labels: map[string]string{}, Capacity: corev1.ResourceList{}}
	var err error
	if g.Nodes, err = strconv.Atoi(parts[0]); err != nil || g.Nodes < 0 {
		return wrong("%q is not a number of nodes", parts[0])
	}
	for _, part := range parts[1:] {
		name, value, ok := strings.Cut(part, "=")
		label, isLabel := strings.CutPrefix(name, "label:")
		if short, there := shortLabels[name]; there {
			label, isLabel = short, true
		}
		taint, isTaint := strings.CutPrefix(part, "taint:")
		switch {
		case isTaint:
			taints, _, err := taintutils.ParseTaints([]string{taint})
			if err != nil || len(taints) != 1 {
				return wrong("%q is not a taint such as taint:dedicated=gpu:NoSchedule", part)
			}
			if slices.ContainsFunc(g.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taints[0]) }) {
				return wrong("%q: there is one of that key and effect already", part)
			}
			g.Taints = append(g.Taints, taints...)
		case !ok:
			return wrong("%q is not NAME=VALUE, such as zone=eu-a or nvidia.com/gpu=8", part)
		case isLabel:
			if problems := append(validation.IsQualifiedName(label), validation.IsValidLabelValue(value)...); len(problems) > 0 {
				return wrong("%q: %s", part, strings.Join(problems, "; "))
			}
			if _, there := g.Labels[label]; there {
				return wrong("the label %s is there twice", label)
			}
			if _, there := Labels("")[label]; there {
				return wrong("each node sets the label %s itself", label)
			}
			g.Labels[label] = value
		default:
			of := corev1.ResourceName(name)
			if problems := validation.IsQualifiedName(name); len(problems) > 0 {
				return wrong("%q: %s", part, strings.Join(problems, "; "))
			}
			if !helper.IsExtendedResourceName(of) && !helper.IsHugePageResourceName(of) && !slices.Contains(own, of) {
				return wrong("%q: a resource is %v, or has a domain such as nvidia.com/gpu; a label is label:%s", part, own, part)
			}
			q, err := resource.ParseQuantity(value)
			if err != nil || q.Sign() < 0 {
				return wrong("%q is not a quantity of %s; a label is label:%s", value, name, part)
			}
			if (helper.IsExtendedResourceName(of) || of == corev1.ResourcePods) && q.MilliValue()%1000 != 0 {
				return wrong("%q: only whole numbers of %s exist", part, name)
			}
			if _, there := g.Capacity[of]; there {
				return wrong("the resource %s is there twice", name)
			}
			g.Capacity[of] = q
		}
	}
	return g, nil
}

// ParseAll reads the values of the option, and checks that all together are at most so many nodes.
func ParseAll(list []string, most int) (groups []Group, nodes int, err error) {
	for _, text := range list {
		g, err := Parse(text)
		if err != nil {
			return nil, 0, err
		}
		groups, nodes = append(groups, g), nodes+g.Nodes
	}
	if nodes > most {
		return nil, 0, fmt.Errorf("--%s: there can be %d nodes, not %d", Option, most, nodes)
	}
	return groups, nodes, nil
}
