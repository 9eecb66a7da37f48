package process

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// SimulateNode tells a simulated node how to behave: Cluster.SimulateNode(t, "simulated-0", "down=true"). An empty value ends it.
// docs/testing.md of karve lists the annotations of a Node.
func (c *Cluster) SimulateNode(t testing.TB, node string, annotations ...string) {
	t.Helper()
	c.simulate(t, corev1.SchemeGroupVersion.WithResource("nodes"), node, annotations)
}

// SimulatePods tells all Pods of a namespace, those that run too, how to behave, unless their own annotations say otherwise:
// Cluster.SimulatePods(t, ns, "fails=20%", "seed=7"). An empty value ends it. docs/testing.md of karve lists the annotations of a
// Pod.
func (c *Cluster) SimulatePods(t testing.TB, namespace string, annotations ...string) {
	t.Helper()
	c.simulate(t, corev1.SchemeGroupVersion.WithResource("namespaces"), namespace, annotations)
}

func (c *Cluster) simulate(t testing.TB, of schema.GroupVersionResource, name string, annotations []string) {
	t.Helper()
	set := map[string]any{}
	for _, a := range annotations {
		key, value, ok := strings.Cut(a, "=")
		if !ok {
			t.Fatalf("%s: want name=value, such as down=true", a)
		}
		if set["simulate.karve/"+key] = value; value == "" {
			set["simulate.karve/"+key] = nil
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": set}})
	if err == nil {
		_, err = c.dynamic.Resource(of).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		t.Fatalf("annotate %s %s: %v", of.Resource, name, err)
	}
}
