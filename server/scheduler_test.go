package server_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/internal/eventually"
)

// node creates a ready Node, as a kubelet would.
func (c *cluster) node(t *testing.T, name string) {
	t.Helper()
	nodes := c.CoreV1().Nodes()
	create(t, nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	eventually.Nil(t, "the status of node "+name+" is written", func() error { // controllers write the object, too
		node, err := nodes.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Status = corev1.NodeStatus{Capacity: capacity, Allocatable: capacity, Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Test", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}}}
		_, err = nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
		return err
	})
}

// pod returns a Pod that fits no node. A bound Pod would need a kubelet to end it, and there
// is none.
func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{NodeSelector: map[string]string{"for": "nobody"}, Containers: []corev1.Container{{
			Name: "main", Image: "none",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
		}}},
	}
}
