package servertest_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/servertest"
)

// Forks in this process, in others where upstream allows no more than one here, and in
// memory: in parallel, and reused, each with its own objects.
func TestForks(t *testing.T) {
	for name, options := range map[string][]servertest.Option{
		"api":       {servertest.APIOnly()},
		"in memory": {servertest.APIOnly(), servertest.Configure(func(c *server.Config) { c.DatastoreEndpoint = "memory://" })},
		"whole":     nil,
	} {
		t.Run(name, func(t *testing.T) {
			base := servertest.Start(t, options...)
			if _, err := base.Client().CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "bases"}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			base.Snapshot(t)
			for i := range 4 {
				t.Run(fmt.Sprint(i), func(t *testing.T) {
					if i < 2 {
						t.Parallel()
					}
					fork := base.Fork(t)
					if name != "in memory" && i == 3 {
						fork.Restart(t)
					}
					maps := fork.Client().CoreV1().ConfigMaps("default")
					if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "forks"}}, metav1.CreateOptions{}); err != nil {
						t.Error(err)
					}
					if err := maps.Delete(t.Context(), "bases", metav1.DeleteOptions{}); err != nil {
						t.Error(err)
					}
					namespace := fork.Namespace(t)
					if _, err := fork.Client().AppsV1().Deployments(namespace).Create(t.Context(), deployment(2), metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
					if options == nil {
						wantPods(t, fork, namespace, 2)
					}
				})
			}
			if _, err := base.Client().CoreV1().ConfigMaps("default").Get(t.Context(), "bases", metav1.GetOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}
