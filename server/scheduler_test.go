package server_test

import (
	"fmt"
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

func TestSchedulerBindsPods(t *testing.T) {
	c := shared(t)
	ns := c.namespace(t)
	// The labels keep the Pods of other tests off the node, and this test's Pods on it. Four
	// of them fit.
	c.node(t, ns)
	for i := range 5 {
		p := pod(fmt.Sprintf("pod-%d", i))
		p.Spec.NodeSelector = map[string]string{"for": ns}
		create(t, c.CoreV1().Pods(ns), p)
	}
	bound := func() (count int, unschedulable int, err error) {
		pods, err := c.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return 0, 0, err
		}
		for _, p := range pods.Items {
			if p.Spec.NodeName == ns {
				count++
			}
			for _, condition := range p.Status.Conditions {
				if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable {
					unschedulable++
				}
			}
		}
		return count, unschedulable, nil
	}
	want := func(wantBound, wantUnschedulable int) func() error {
		return func() error {
			got, waiting, err := bound()
			if err == nil && (got != wantBound || waiting != wantUnschedulable) {
				err = fmt.Errorf("got %d bound and %d unschedulable, want %d and %d", got, waiting, wantBound, wantUnschedulable)
			}
			return err
		}
	}
	eventually.Nil(t, "no node has the label: no Pod is bound", want(0, 5))
	eventually.Nil(t, "the node gets its label", func() error {
		n, err := c.CoreV1().Nodes().Get(t.Context(), ns, metav1.GetOptions{})
		if err != nil {
			return err
		}
		metav1.SetMetaDataLabel(&n.ObjectMeta, "for", ns)
		_, err = c.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
		return err
	})
	eventually.Nil(t, "the node is full", want(4, 1))
}
