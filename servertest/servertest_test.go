package servertest_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/servertest"
)

// A Deployment gets its Pods, so the controllers run. Nothing runs the Pods, because there
// is no node.
func Example() {
	var t *testing.T // the test's
	cluster := servertest.Start(t)
	namespace := cluster.Namespace(t)
	_, err := cluster.Client().AppsV1().Deployments(namespace).Create(t.Context(), deployment(2), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func deployment(replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": "web"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}},
		}},
	}
}

// wantPods waits for the Pods of a Deployment.
func wantPods(t *testing.T, cluster *servertest.Server, namespace string, want int) {
	t.Helper()
	cluster.Eventually(t, "the pods of the deployment", func() error {
		pods, err := cluster.Client().CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(pods.Items) != want {
			err = fmt.Errorf("%d pods, want %d", len(pods.Items), want)
		}
		return err
	})
}

// With nodes, the Pods run, as far as the cluster can tell.
func ExampleNodes() {
	var t *testing.T // the test's
	cluster := servertest.Start(t, servertest.Nodes(3))
	namespace := cluster.Namespace(t)
	deployments := cluster.Client().AppsV1().Deployments(namespace)
	if _, err := deployments.Create(t.Context(), deployment(2), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wantAvailable(t, cluster, namespace)
}

func wantAvailable(t *testing.T, cluster *servertest.Server, namespace string) {
	t.Helper()
	cluster.Eventually(t, "the deployment is available", func() error {
		d, err := cluster.Client().AppsV1().Deployments(namespace).Get(t.Context(), "web", metav1.GetOptions{})
		if err == nil && d.Status.AvailableReplicas != *d.Spec.Replicas {
			err = fmt.Errorf("status: %+v", d.Status)
		}
		return err
	})
}

func TestNodes(t *testing.T) {
	for _, where := range []struct {
		name    string
		options []servertest.Option
	}{{"here", nil}, {"separate", []servertest.Option{servertest.Separate()}}} {
		t.Run(where.name, func(t *testing.T) {
			cluster := servertest.Start(t, append(where.options, servertest.Nodes(2))...)
			namespace := cluster.Namespace(t)
			if _, err := cluster.Client().AppsV1().Deployments(namespace).Create(t.Context(), deployment(2), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			wantAvailable(t, cluster, namespace)
			cluster.Restart(t)
			if err := cluster.Client().AppsV1().Deployments(namespace).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			wantPods(t, cluster, namespace, 0)
		})
	}
}

// Clusters in parallel, each with its own objects: with controllers, of which one can be in
// this process; without; and with other feature gates. All run before the first one ends.
func TestParallel(t *testing.T) {
	var up sync.WaitGroup
	kinds := [][]servertest.Option{nil, nil, {servertest.APIOnly()}, {servertest.APIOnly()}, {servertest.APIOnly(), servertest.FeatureGates("ContextualLogging=false")}}
	up.Add(len(kinds))
	t.Run("all", func(t *testing.T) { // subtests end before it does
		var clusters sync.WaitGroup
		defer clusters.Wait()
		for i, options := range kinds {
			clusters.Go(func() {
				t.Run(fmt.Sprint(i), func(t *testing.T) { ownObjects(t, int32(i), &up, options) })
			})
		}
	})
}

func ownObjects(t *testing.T, i int32, up *sync.WaitGroup, options []servertest.Option) {
	arrive := sync.OnceFunc(up.Done)
	defer arrive() // also after a failure
	cluster := servertest.Start(t, options...)
	namespace := cluster.Namespace(t)
	if _, err := cluster.Client().AppsV1().Deployments(namespace).Create(t.Context(), deployment(i+1), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if options == nil {
		wantPods(t, cluster, namespace, int(i+1))
	}
	arrive()
	up.Wait()
	all, err := cluster.Client().AppsV1().Deployments("").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(all.Items) != 1 || *all.Items[0].Spec.Replicas != i+1 {
		t.Errorf("%d deployments of all clusters, want this one's own: %v", len(all.Items), err)
	}
}

func TestAPIOnly(t *testing.T) {
	cluster := servertest.Start(t, servertest.APIOnly(), servertest.Configure(func(c *server.Config) { c.TLSSANs = []string{"cluster.example"} }))
	namespace := cluster.Namespace(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if _, err := cluster.Client().CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
}

// failing is a test that is meant to fail.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper() {}

func (f *failing) Fatal(args ...any) {
	f.said = fmt.Sprint(args...)
	panic(f)
}

func TestAStartThatFails(t *testing.T) {
	for _, options := range [][]servertest.Option{nil, {servertest.Separate()}} {
		f := &failing{TB: t}
		func() {
			defer func() { recover() }()
			servertest.Start(f, append(options, servertest.FeatureGates("NoSuchGate=true"))...)
		}()
		if !strings.Contains(f.said, "NoSuchGate") {
			t.Errorf("%q is not the server's reason", f.said)
		}
	}
	servertest.Start(t, servertest.APIOnly()) // nothing of them is left
}
