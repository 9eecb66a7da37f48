package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/karve-k8s/karve/test/bench/load"
)

const deploymentPods = 20

// controllerRows are measured in a namespace of their own, one after the other: each needs what the one before made.
var controllerRows = []struct {
	only, row string
	measure   func(*apiBench, context.Context, string) (time.Duration, error)
}{
	{"serviceaccount", "Namespace → default ServiceAccount", (*apiBench).serviceAccount},
	{"deployment", "Deployment → 20 Pods created", (*apiBench).deployment},
	{"namespace", "Namespace with 20 Pods deleted → gone", (*apiBench).namespaceGone},
}

// controllers measures the rows about controllers. It repeats each a few times, and takes the
// median.
func (b *apiBench) controllers(ctx context.Context) error {
	if !slices.ContainsFunc(b.only, func(only string) bool { return only == "serviceaccount" || only == "deployment" || only == "namespace" }) {
		return nil
	}
	took := make([][]time.Duration, len(controllerRows))
	for n := range b.plan.repeats {
		for i, r := range controllerRows {
			one, err := r.measure(b, ctx, fmt.Sprintf("bench-%d", n))
			if err != nil {
				return fmt.Errorf("%s: %w", r.row, err)
			}
			took[i] = append(took[i], one)
		}
	}
	for i, r := range controllerRows {
		if b.wants(r.only) {
			b.sample.add(r.row, p50, load.Summarise(took[i], time.Second).P50.Seconds())
		}
	}
	return nil
}

// serviceAccount creates a namespace and waits for its default ServiceAccount.
func (b *apiBench) serviceAccount(ctx context.Context, namespace string) (time.Duration, error) {
	core := b.clients[0].CoreV1()
	w, err := core.ServiceAccounts(namespace).Watch(ctx, named("default"))
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	began := time.Now()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := core.Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	_, err = nextEvent(ctx, w)
	return time.Since(began), err
}

// deployment creates a Deployment and waits for its Pods.
func (b *apiBench) deployment(ctx context.Context, namespace string) (time.Duration, error) {
	w, err := b.clients[0].CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	labels := map[string]string{"app": "bench"}
	replicas := int32(deploymentPods)
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.invalid/none"}}},
			},
		},
	}
	began := time.Now()
	if _, err := b.clients[0].AppsV1().Deployments(namespace).Create(ctx, d, metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	for seen := map[string]bool{}; len(seen) < deploymentPods; {
		event, err := nextEvent(ctx, w)
		if err != nil {
			return 0, fmt.Errorf("%d of %d Pods: %w", len(seen), deploymentPods, err)
		}
		pod, ok := event.Object.(*corev1.Pod)
		if !ok {
			return 0, fmt.Errorf("%w: event %s of a %T", load.ErrWrong, event.Type, event.Object)
		}
		seen[pod.Name] = true
	}
	return time.Since(began), nil
}

// namespaceGone deletes the namespace with the Deployment and waits until it is gone.
func (b *apiBench) namespaceGone(ctx context.Context, namespace string) (time.Duration, error) {
	core := b.clients[0].CoreV1()
	pods, err := core.Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	if err := load.Expect(len(pods.Items), deploymentPods, nil); err != nil {
		return 0, fmt.Errorf("count the Pods: %w", err)
	}
	w, err := core.Namespaces().Watch(ctx, named(namespace))
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	began := time.Now()
	if err := core.Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
		return 0, err
	}
	for {
		event, err := nextEvent(ctx, w)
		if err != nil {
			return 0, err
		}
		if event.Type == watch.Deleted {
			return time.Since(began), nil
		}
	}
}

func named(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: "metadata.name=" + name}
}
