package server_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// BenchmarkControllers reports how long a user waits for controllers: from the request until a
// watch shows the last of the requested changes.
func BenchmarkControllers(b *testing.B) {
	c, err := launch(b.TempDir(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := c.stop(); err != nil {
			b.Error(err)
		}
	}()
	const pods = 20
	var account, created, gone time.Duration
	ctx := b.Context()
	for b.Loop() {
		namespaces, err := c.CoreV1().Namespaces().Watch(ctx, metav1.ListOptions{})
		if err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		ns, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"}}, metav1.CreateOptions{})
		if err != nil {
			b.Fatal(err)
		}
		accounts, err := c.CoreV1().ServiceAccounts(ns.Name).Watch(ctx, metav1.ListOptions{})
		if err != nil {
			b.Fatal(err)
		}
		awaitEvents(b, accounts, watch.Added, "default", 1)
		account += time.Since(began)

		watched, err := c.CoreV1().Pods(ns.Name).Watch(ctx, metav1.ListOptions{})
		if err != nil {
			b.Fatal(err)
		}
		began = time.Now()
		if _, err := c.AppsV1().Deployments(ns.Name).Create(ctx, deployment("web", pods), metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
		awaitEvents(b, watched, watch.Added, "", pods)
		created += time.Since(began)

		began = time.Now()
		if err := c.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{}); err != nil {
			b.Fatal(err)
		}
		awaitEvents(b, namespaces, watch.Deleted, ns.Name, 1)
		gone += time.Since(began)
	}
	report := func(total time.Duration, name string) {
		b.ReportMetric(float64(total.Microseconds())/1000/float64(b.N), name)
	}
	b.ReportMetric(0, "ns/op")
	report(account, "ms/default-ServiceAccount")
	report(created, "ms/20-Pods")
	report(gone, "ms/Namespace-gone")
}

// awaitEvents waits for n events of a kind, only for objects called name unless name is empty.
func awaitEvents(b *testing.B, w watch.Interface, kind watch.EventType, name string, n int) {
	b.Helper()
	defer w.Stop()
	late, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	for n > 0 {
		select {
		case e, open := <-w.ResultChan():
			if !open {
				b.Fatal("the watch ended")
			}
			if o, ok := e.Object.(metav1.Object); ok && e.Type == kind && (name == "" || name == o.GetName()) {
				n--
			}
		case <-late.Done():
			b.Fatalf("%s events: %d still missing after %v", kind, n, patience)
		}
	}
}
