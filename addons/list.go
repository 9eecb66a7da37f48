package addons

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

// State is the state of an addon in a cluster.
type State struct {
	Name   string `json:"name"`
	Made   bool   `json:"made"`            // by Apply
	Image  string `json:"image,omitempty"` // empty: it is not in the cluster
	Wanted int64  `json:"wanted"`          // Pods
	Ready  int64  `json:"ready"`
}

// List returns the state of each addon.
func List(ctx context.Context, client dynamic.Interface) ([]State, error) {
	var states []State
	for _, name := range Names {
		objects, err := parse(manifests[name])
		if err != nil {
			return nil, err
		}
		workload := objects[len(objects)-1]
		s := State{Name: name}
		current, err := clientFor(client, workload).Get(ctx, workload.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			states = append(states, s)
			continue
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", nameOf(workload), err)
		}
		s.Made = current.GetLabels()[Label] == name
		containers, _, _ := unstructured.NestedSlice(current.Object, "spec", "template", "spec", "containers")
		if len(containers) > 0 {
			s.Image, _, _ = unstructured.NestedString(containers[0].(map[string]any), "image")
		}
		if workload.GetKind() == "DaemonSet" {
			s.Wanted, _, _ = unstructured.NestedInt64(current.Object, "status", "desiredNumberScheduled")
			s.Ready, _, _ = unstructured.NestedInt64(current.Object, "status", "numberReady")
		} else {
			s.Wanted, _, _ = unstructured.NestedInt64(current.Object, "spec", "replicas")
			s.Ready, _, _ = unstructured.NestedInt64(current.Object, "status", "readyReplicas")
		}
		states = append(states, s)
	}
	return states, nil
}
