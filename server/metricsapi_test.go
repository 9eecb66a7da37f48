package server_test

import (
	"fmt"
	"strconv"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsclient "k8s.io/metrics/pkg/client/clientset/versioned"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/simulate"
)

// TestSimulatedUsage makes a HorizontalPodAutoscaler follow the usage that annotations of Pods
// claim. Once a server has no nodes, it no longer serves metrics.
func TestSimulatedUsage(t *testing.T) {
	dir := t.TempDir()
	simulating := func(nodes int) func(*server.Config) {
		return func(config *server.Config) {
			config.DataDir, config.SimulateNodes = dir, []string{strconv.Itoa(nodes)}
			config.ControllerManagerArgs = []string{"horizontal-pod-autoscaler-sync-period=1s"}
		}
	}
	c := start(t, simulating(1))
	testUsage(t, c)
	c.down(t)
	c = start(t, simulating(0))
	eventually.Nil(t, "metrics.k8s.io is gone", func() error {
		groups, err := c.Discovery().ServerGroups()
		if err != nil {
			return err
		}
		for _, g := range groups.Groups {
			if g.Name == "metrics.k8s.io" {
				return fmt.Errorf("it is served: %+v", g)
			}
		}
		return nil
	})
}

func testUsage(t *testing.T, c *cluster) {
	ctx, ns := t.Context(), c.namespace(t)
	usage, err := metricsclient.NewForConfig(c.admin)
	fatal(t, err)
	pods := template(simulate.CPUUsage, "90m", simulate.MemoryUsage+".main", "32Mi")
	pods.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	create(t, c.AppsV1().Deployments(ns), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](1), Selector: web, Template: pods}})
	create(t, c.AutoscalingV2().HorizontalPodAutoscalers(ns), &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			MaxReplicas:    3,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
				Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: ptr.To[int32](50)}}}},
		}})
	eventually.Nil(t, "there are 3 Pods, as each uses nearly twice its share", func() error {
		d, err := c.AppsV1().Deployments(ns).Get(ctx, "web", metav1.GetOptions{})
		if err == nil && d.Status.ReadyReplicas != 3 {
			err = fmt.Errorf("status: %+v", d.Status)
		}
		return err
	})

	list, err := usage.MetricsV1beta1().PodMetricses(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil || len(list.Items) != 3 {
		t.Fatalf("%d Pods have a usage (%v), want 3", len(list.Items), err)
	}
	for _, p := range list.Items {
		main := p.Containers[0]
		if len(p.Containers) != 1 || main.Name != "main" || main.Usage.Cpu().String() != "90m" || main.Usage.Memory().String() != "32Mi" {
			t.Errorf("usage of %s: got %+v, want that of its annotations", p.Name, p.Containers)
		}
	}
	one, err := usage.MetricsV1beta1().PodMetricses(ns).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + list.Items[1].Name})
	if err != nil || len(one.Items) != 1 || one.Items[0].Name != list.Items[1].Name {
		t.Errorf("the one of that name: got %+v (%v), want %s", one, err, list.Items[1].Name)
	}
	node, err := usage.MetricsV1beta1().NodeMetricses().Get(ctx, simulate.Name(0), metav1.GetOptions{})
	if err != nil || node.Usage.Cpu().String() != "270m" || node.Usage.Memory().String() != "96Mi" {
		t.Errorf("usage of the node: got %+v (%v), want the sum of its Pods'", node, err)
	}
	_, err = usage.MetricsV1beta1().PodMetricses(ns).Get(ctx, "none", metav1.GetOptions{})
	if err := wantNotFound(err); err != nil {
		t.Errorf("usage of a Pod that is not there: %v, want not found", err)
	}
}
