package server_test

import (
	"errors"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server"
)

// To show that something does not happen, the test waits for work that it gives to the enabled
// controllers afterwards.

func TestDisabledControllersAndScheduler(t *testing.T) {
	c := start(t, func(config *server.Config) {
		config.DisableControllers = []string{"deployment", "cronjob-controller"} // an alias and a name
		config.DisableScheduler = true
	})
	ctx := t.Context()
	ns := c.namespace(t)
	c.node(t, "idle")
	web := create(t, c.AppsV1().Deployments(ns), deployment("web", 1))
	free := pod("free")
	free.Spec.NodeSelector = nil
	create(t, c.CoreV1().Pods(ns), free)

	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "later"}, Spec: appsv1.ReplicaSetSpec{
		Selector: web.Spec.Selector.DeepCopy(), Template: *web.Spec.Template.DeepCopy(),
	}}
	create(t, c.AppsV1().ReplicaSets(ns), set)
	c.wantPods(t, ns, 2) // the free one and the ReplicaSet's
	sets, err := c.AppsV1().ReplicaSets(ns).List(ctx, metav1.ListOptions{})
	fatal(t, err)
	if len(sets.Items) != 1 {
		t.Errorf("the deployment controller is off: got %d ReplicaSets, want only the test's own", len(sets.Items))
	}
	p, err := c.CoreV1().Pods(ns).Get(ctx, "free", metav1.GetOptions{})
	fatal(t, err)
	if p.Spec.NodeName != "" || len(p.Status.Conditions) != 0 {
		t.Errorf("the scheduler is off: got node %q and conditions %v, want none", p.Spec.NodeName, p.Status.Conditions)
	}
	status, body := get(t, httpClient(t, c.admin), c.URL+"/readyz?verbose")
	if err := contains(status, body, "[+]controllers ok"); err != nil {
		t.Error(err)
	}
	if strings.Contains(body, "]scheduler ") {
		t.Errorf("/readyz has a scheduler: %s", body)
	}
}

func TestSchedulerWorksWithoutControllers(t *testing.T) {
	c := start(t, func(config *server.Config) { config.NoControllers = true })
	ctx := t.Context()
	create(t, c.CoreV1().Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "bare"}})
	create(t, c.AppsV1().Deployments("bare"), deployment("web", 1))
	// The scheduler is on: it reports that it cannot place a Pod.
	create(t, c.CoreV1().ServiceAccounts("bare"), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "own"}})
	p := pod("unplaced")
	p.Spec.ServiceAccountName = "own"
	create(t, c.CoreV1().Pods("bare"), p)
	eventually.Nil(t, "the scheduler has looked at the Pod", func() error {
		p, err := c.CoreV1().Pods("bare").Get(ctx, "unplaced", metav1.GetOptions{})
		if err == nil && len(p.Status.Conditions) == 0 {
			err = errors.New("nothing yet")
		}
		return err
	})
	if _, err := c.CoreV1().ServiceAccounts("bare").Get(ctx, "default", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("default service account: got %v, want not found", err)
	}
	sets, err := c.AppsV1().ReplicaSets("bare").List(ctx, metav1.ListOptions{})
	if err != nil || len(sets.Items) != 0 {
		t.Errorf("ReplicaSets: got %d and error %v, want none", len(sets.Items), err)
	}
	status, body := get(t, httpClient(t, c.admin), c.URL+"/readyz?verbose")
	if err := contains(status, body, "[+]scheduler ok"); err != nil {
		t.Error(err)
	}
	if strings.Contains(body, "]controllers ") {
		t.Errorf("/readyz has controllers: %s", body)
	}
}
