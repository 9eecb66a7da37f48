package server_test

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/internal/eventually"
)

func deployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(replicas), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod("").Spec},
		},
	}
}

// wantPods waits until the namespace has n Pods.
func (c *cluster) wantPods(t *testing.T, ns string, n int) []corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	eventually.Nil(t, fmt.Sprintf("%d Pods", n), func() error {
		list, err := c.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if pods = list.Items; len(pods) != n {
			return fmt.Errorf("got %d", len(pods))
		}
		return nil
	})
	return pods
}

func TestTimeZonesAreKnown(t *testing.T) {
	c := shared(t)
	ns := c.namespace(t)
	spec := pod("").Spec
	spec.RestartPolicy = corev1.RestartPolicyNever
	// Also where the machine has no files of them.
	create(t, c.BatchV1().CronJobs(ns), &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "daily"},
		Spec: batchv1.CronJobSpec{
			Schedule: "0 4 * * *", TimeZone: ptr.To("Atlantic/Reykjavik"),
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: spec}}},
		},
	})
}
