package server_test

import (
	"regexp"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// warnings matches the lines of a log that a user sees and that report a problem.
var warnings = regexp.MustCompile(`(?m)^.*level=(warning|error|fatal).*$`)

// fill creates objects of the kinds whose controllers create, update or bind others.
func (c *cluster) fill(t *testing.T, ns string) {
	t.Helper()
	create(t, c.CoreV1().ResourceQuotas(ns), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "quota"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("40")}},
	})
	create(t, c.PolicyV1().PodDisruptionBudgets(ns), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: web, MinAvailable: ptr.To(intstr.FromInt32(1))},
	})
	create(t, c.AppsV1().Deployments(ns), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](5), Selector: web, Template: template()},
	})
	create(t, c.AppsV1().StatefulSets(ns), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To[int32](5), PodManagementPolicy: appsv1.ParallelPodManagement, Selector: web, Template: template(),
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
				},
			}},
		},
	})
	create(t, c.AppsV1().DaemonSets(ns), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"},
		Spec:       appsv1.DaemonSetSpec{Selector: web, Template: template()},
	})
	once := template()
	once.Spec.RestartPolicy = corev1.RestartPolicyNever
	create(t, c.BatchV1().Jobs(ns), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "once"},
		Spec:       batchv1.JobSpec{Parallelism: ptr.To[int32](2), Completions: ptr.To[int32](4), Template: once},
	})
}
