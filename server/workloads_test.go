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

func TestDeploymentMakesPods(t *testing.T) {
	c := shared(t)
	ns := c.namespace(t)
	deployments := c.AppsV1().Deployments(ns)
	create(t, deployments, deployment("web", 3))
	pods := c.wantPods(t, ns, 3)
	if owner := metav1.GetControllerOf(&pods[0]); owner == nil || owner.Kind != "ReplicaSet" {
		t.Errorf("a Pod's controller: got %v, want a ReplicaSet", owner)
	}
	if got := pods[0].Spec.ServiceAccountName; got != "default" {
		t.Errorf("service account: got %q, want default", got)
	}
	eventually.Nil(t, "the Deployment's status counts its Pods", func() error {
		d, err := deployments.Get(t.Context(), "web", metav1.GetOptions{})
		if err == nil && d.Status.Replicas != 3 {
			err = fmt.Errorf("got %d, want 3", d.Status.Replicas)
		}
		return err
	})
	scale, err := deployments.GetScale(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	scale.Spec.Replicas = 1
	if _, err := deployments.UpdateScale(t.Context(), "web", scale, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.wantPods(t, ns, 1)

	// Garbage collection deletes the Pods with the owner of their owner.
	background := metav1.DeletePropagationBackground
	if err := deployments.Delete(t.Context(), "web", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Fatal(err)
	}
	c.wantPods(t, ns, 0)
}

func TestGarbageCollectionByOwner(t *testing.T) {
	c := shared(t)
	ns := c.namespace(t)
	maps := c.CoreV1().ConfigMaps(ns)
	owner := create(t, maps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}})
	for _, name := range []string{"owned", "orphaned"} {
		uid := owner.UID
		if name == "orphaned" {
			uid = "never-was"
		}
		create(t, maps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: uid},
		}}})
	}
	gone := func(name string) func() error {
		return func() error {
			_, err := maps.Get(t.Context(), name, metav1.GetOptions{})
			return wantNotFound(err)
		}
	}
	eventually.Nil(t, "what has an owner that never was is gone", gone("orphaned"))
	if _, err := maps.Get(t.Context(), "owned", metav1.GetOptions{}); err != nil {
		t.Errorf("what has an owner: got %v, want it there", err)
	}
	foreground := metav1.DeletePropagationForeground
	if err := maps.Delete(t.Context(), "owner", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	eventually.Nil(t, "what it owned is gone", gone("owned"))
	eventually.Nil(t, "the owner is gone", gone("owner"))
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
