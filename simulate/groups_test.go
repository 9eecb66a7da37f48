package simulate

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
)

func TestGroups(t *testing.T) {
	groups, nodes, err := ParseGroups([]string{"2", "1,zone=eu-a,cpu=4,nvidia.com/gpu=8,label:pool=gpu,taint:gpu=yes:NoSchedule"})
	if err != nil || nodes != 3 {
		t.Fatalf("got %d nodes and %v, want 3", nodes, err)
	}
	s, _ := newSimulation(t)
	s.Nodes, s.Groups, s.Version = nodes, groups, version.MustParseSemantic("1.37.2").String()
	usual, own := s.object(newNode(1, s.IPv6), time.Now()), s.object(newNode(2, s.IPv6), time.Now())
	if usual.Labels[corev1.LabelTopologyZone] != "" || len(usual.Spec.Taints) > 0 || usual.Status.Capacity.Cpu().String() != "32" {
		t.Errorf("a node of the first group: got %+v", usual)
	}
	gpus := own.Status.Allocatable["nvidia.com/gpu"]
	if own.Labels[corev1.LabelTopologyZone] != "eu-a" || own.Labels["pool"] != "gpu" || gpus.String() != "8" || own.Status.Capacity.Cpu().String() != "4" ||
		len(own.Spec.Taints) != 1 || own.Spec.Taints[0].Effect != corev1.TaintEffectNoSchedule || own.Status.Capacity.Pods().String() != "110" {
		t.Errorf("a node of the second group: got %+v", own)
	}
	for text, want := range map[string]string{
		"":                                 `"" is not a number of nodes`,
		"two":                              `"two" is not a number of nodes`,
		"-1":                               `"-1" is not a number of nodes`,
		"1,zone":                           `"zone" is not NAME=VALUE`,
		"1,zone=a b":                       `"zone=a b": a valid label must`,
		"1,cpu=many":                       `"many" is not a quantity of cpu; a label is label:cpu=many`,
		"1,taint:gpu=yes:Soon":             "is not a taint such as",
		"1,gpu=8":                          "or has a domain such as nvidia.com/gpu; a label is label:gpu=8",
		"1,nvidia.com/gpu=1.5":             "only whole numbers of nvidia.com/gpu exist",
		"1,zone=a,zone=b":                  "the label topology.kubernetes.io/zone is there twice",
		"1,cpu=1,cpu=2":                    "the resource cpu is there twice",
		"1,label:kubernetes.io/hostname=x": "each node sets the label kubernetes.io/hostname itself",
		"1,taint:a=b:NoSchedule,taint:a=c:NoSchedule": "there is one of that key and effect already",
		"20000": "there can be 16384 nodes, not 20000",
	} {
		if _, _, err := ParseGroups([]string{text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}
