package server_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
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

func TestJob(t *testing.T) {
	c := shared(t)
	ns := c.namespace(t)
	spec := pod("").Spec
	spec.RestartPolicy = corev1.RestartPolicyNever
	create(t, c.BatchV1().Jobs(ns), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "once"},
		Spec:       batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: spec}},
	})
	p := c.wantPods(t, ns, 1)[0]
	p.Status = corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: metav1.Now()}},
	}}}
	eventually.Nil(t, "the Pod succeeds", func() error {
		now, err := c.CoreV1().Pods(ns).Get(t.Context(), p.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now.Status = p.Status
		_, err = c.CoreV1().Pods(ns).UpdateStatus(t.Context(), now, metav1.UpdateOptions{})
		return err
	})
	eventually.Nil(t, "the Job is complete", func() error {
		job, err := c.BatchV1().Jobs(ns).Get(t.Context(), "once", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(job.Status.Conditions, func(j batchv1.JobCondition) bool {
			return j.Type == batchv1.JobComplete && j.Status == corev1.ConditionTrue
		}) {
			return fmt.Errorf("status: %+v", job.Status)
		}
		return nil
	})
	// Time zones must be known even where the machine has no zone files.
	create(t, c.BatchV1().CronJobs(ns), &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "daily"},
		Spec: batchv1.CronJobSpec{
			Schedule: "0 4 * * *", TimeZone: ptr.To("Atlantic/Reykjavik"),
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: spec}}},
		},
	})
}

func TestNamespaceDeletion(t *testing.T) {
	c := shared(t)
	ctx := t.Context()
	ns := c.namespace(t)
	create(t, c.AppsV1().Deployments(ns), deployment("web", 2))
	create(t, c.CoreV1().Secrets(ns), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"}})
	c.wantPods(t, ns, 2)
	began := time.Now()
	if err := c.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.namespaceGone(t, ns)
	t.Logf("gone after %v", time.Since(began).Round(time.Millisecond))
	if pods, err := c.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{}); err != nil || len(pods.Items) != 0 {
		t.Errorf("Pods left: got %v and error %v, want none", pods.Items, err)
	}
	if _, err := c.CoreV1().Secrets(ns).Get(ctx, "secret", metav1.GetOptions{}); wantNotFound(err) != nil {
		t.Errorf("the Secret: got %v, want not found", err)
	}
}

func TestEndpointSlices(t *testing.T) {
	c := shared(t)
	ctx := t.Context()
	ns := c.namespace(t)
	service := create(t, c.CoreV1().Services(ns), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
	})
	if service.Spec.ClusterIP == "" {
		t.Error("the Service got no cluster IP")
	}
	p := pod("web")
	p.Labels, p.Spec.NodeName = map[string]string{"app": "web"}, ns
	c.node(t, ns)
	p = create(t, c.CoreV1().Pods(ns), p)
	p.Status.PodIP, p.Status.PodIPs = "10.1.2.3", []corev1.PodIP{{IP: "10.1.2.3"}}
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
	if _, err := c.CoreV1().Pods(ns).UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually.Nil(t, "the Pod is an endpoint", func() error {
		slices, err := c.DiscoveryV1().EndpointSlices(ns).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
		if err != nil {
			return err
		}
		for _, slice := range slices.Items {
			for _, e := range slice.Endpoints {
				if e.Addresses[0] == "10.1.2.3" && ptr.Deref(e.Conditions.Ready, false) {
					return nil
				}
			}
		}
		return fmt.Errorf("%d slices", len(slices.Items))
	})
}
