package server_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server"
)

// warnings matches the lines of a log that a user sees and that report a problem.
var warnings = regexp.MustCompile(`(?m)^.*level=(warning|error|fatal).*$`)

// Controllers and the scheduler race with the deletion of a namespace, and log their failures.
// A user sees none of these lines, but does see why a Pod cannot be created.
func TestDeletingANamespaceWithContentLogsNoError(t *testing.T) {
	c := start(t, func(config *server.Config) {
		config.SimulateNodes = 2
		config.Log.SetLevel(logrus.DebugLevel) // demoted lines are at debug
	})
	const demoted = `demoted="the namespace is being deleted"`
	for n, deadline := 0, time.Now().Add(patience); !strings.Contains(c.log.String(), demoted); n++ {
		if time.Now().After(deadline) {
			t.Fatalf("nothing was demoted in %d deletions", n)
		}
		ns := c.namespace(t)
		c.fill(t, ns)
		fatal(t, c.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}))
		eventually.Nil(t, "the namespace is gone", func() error {
			_, err := c.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{})
			return wantNotFound(err)
		})
	}
	if lines := warnings.FindAllString(c.log.String(), -1); len(lines) > 0 {
		t.Errorf("%d lines, want none:\n%s", len(lines), strings.Join(lines, "\n"))
	}

	ns := c.namespace(t)
	web := deployment("web", 1)
	web.Spec.Template.Spec.ServiceAccountName = "missing"
	create(t, c.AppsV1().Deployments(ns), web)
	eventually.Nil(t, "a real error is logged", func() error {
		for _, line := range warnings.FindAllString(c.log.String(), -1) {
			if strings.Contains(line, `serviceaccount \\\"missing\\\" not found`) || strings.Contains(line, `serviceaccount \"missing\" not found`) {
				return nil
			}
		}
		return fmt.Errorf("got %q", warnings.FindAllString(c.log.String(), -1))
	})
}

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
