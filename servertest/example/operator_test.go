package example

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/go-logr/logr"
	"github.com/karve-k8s/karve/servertest/process"
)

// The whole life of a Boat. With an API server alone, it would end at the first step:
// controllers of the cluster make the Pods of a Deployment, count them, and remove what a
// Deployment leaves behind.
func TestOperator(t *testing.T) {
	cluster := process.Start(t)
	cluster.CRDs(t, "crds")
	log.SetLogger(logr.Discard())
	manager, err := ctrl.NewManager(cluster.Config(), ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := (&Operator{manager.GetClient()}).SetupWithManager(manager); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- manager.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	api, err := client.New(cluster.Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	namespace := cluster.Namespace(t)

	boat := NewBoat()
	boat.SetName("karve")
	boat.SetNamespace(namespace)
	boat.Object["spec"] = map[string]any{"crew": int64(0)}
	if err := api.Create(ctx, boat); err == nil || !strings.Contains(err.Error(), "spec.crew") {
		t.Errorf("a boat without a crew: %v, want it refused by its schema", err)
	}
	boat.Object["spec"] = map[string]any{"crew": int64(3)}
	if err := api.Create(ctx, boat); err != nil {
		t.Fatal(err)
	}
	pods := func() (n int, err error) {
		var list corev1.PodList
		err = api.List(ctx, &list, client.InNamespace(namespace))
		return len(list.Items), err
	}
	cluster.Eventually(t, "a crew of three", func() error {
		n, err := pods()
		if err != nil {
			return err
		}
		if err := api.Get(ctx, client.ObjectKeyFromObject(boat), boat); err != nil {
			return err
		}
		if told, _, _ := unstructured.NestedInt64(boat.Object, "status", "ready"); n != 3 || told != 3 {
			return fmt.Errorf("%d pods, and the boat tells of %d; want 3", n, told)
		}
		return nil
	})
	// Someone deletes the rowers: their Pods disappear, and others come. (What a Boat
	// leaves behind disappears as well, but upstream's garbage collector learns of new
	// kinds only every 30 s.)
	var first appsv1.Deployment
	if err := api.Get(ctx, client.ObjectKeyFromObject(boat), &first); err != nil {
		t.Fatal(err)
	}
	if err := api.Delete(ctx, &first); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, "another crew", func() error {
		var now appsv1.Deployment
		if err := api.Get(ctx, client.ObjectKeyFromObject(boat), &now); err != nil {
			return err
		}
		n, err := pods()
		if err == nil && (now.UID == first.UID || n != 3 || now.Status.Replicas != 3) {
			err = fmt.Errorf("%d pods, %d of them of a new deployment; want 3", n, now.Status.Replicas)
		}
		return err
	})
}
