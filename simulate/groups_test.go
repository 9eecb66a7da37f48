package simulate

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/karve-k8s/karve/simulate/groups"
)

func TestGroups(t *testing.T) {
	all, nodes, err := groups.ParseAll([]string{"2", "1,zone=eu-a,cpu=4,nvidia.com/gpu=8,label:pool=gpu,taint:gpu=yes:NoSchedule"}, Most)
	if err != nil || nodes != 3 {
		t.Fatalf("got %d nodes and %v, want 3", nodes, err)
	}
	s, _ := newSimulation(t)
	s.Nodes, s.Groups, s.Version = nodes, all, version.MustParseSemantic("1.37.2").String()
	usual, own := s.object(newNode(1, s.IPv6), time.Now()), s.object(newNode(2, s.IPv6), time.Now())
	if usual.Labels[corev1.LabelTopologyZone] != "" || len(usual.Spec.Taints) > 0 || usual.Status.Capacity.Cpu().String() != "32" {
		t.Errorf("a node of the first group: got %+v", usual)
	}
	gpus := own.Status.Allocatable["nvidia.com/gpu"]
	if own.Labels[corev1.LabelTopologyZone] != "eu-a" || own.Labels["pool"] != "gpu" || gpus.String() != "8" || own.Status.Capacity.Cpu().String() != "4" ||
		len(own.Spec.Taints) != 1 || own.Spec.Taints[0].Effect != corev1.TaintEffectNoSchedule || own.Status.Capacity.Pods().String() != "110" {
		t.Errorf("a node of the second group: got %+v", own)
	}
}
