package example

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/servertest/process"
)

func TestFirst(t *testing.T) {
	cluster := process.Start(t)
	namespace := cluster.Namespace(t)
	cluster.Eventually(t, "a controller's ConfigMap", func() error {
		_, err := cluster.Client().CoreV1().ConfigMaps(namespace).Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
		return err
	})
}
