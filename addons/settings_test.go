package addons

import (
	"context"
	"errors"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

// A DNS that an administrator has switched off stays off.
func TestReplicasStay(t *testing.T) {
	for _, tc := range []struct {
		name string
		d    *appsv1.Deployment
		want int64
	}{
		{"none", nil, DefaultReplicas},
		{"scaled to 0", &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](0)}}, 0},
		{"scaled to 5", &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](5)}}, 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client := fake.NewClientset()
			if tc.d != nil {
				tc.d.ObjectMeta = metav1.ObjectMeta{Name: "coredns", Namespace: namespace}
				if err := client.Tracker().Add(tc.d); err != nil {
					t.Fatal(err)
				}
			}
			n, err := replicas(context.Background(), client)
			if err != nil {
				t.Fatal(err)
			}
			objects, err := Objects(CoreDNS, Settings{ServiceRange: "10.96.0.0/12", ClusterDomain: "cluster.local", Replicas: n})
			if err != nil {
				t.Fatal(err)
			}
			got, _, err := unstructured.NestedInt64(find(objects, "Deployment").Object, "spec", "replicas")
			if err != nil || got != tc.want {
				t.Errorf("got %d, %v, want %d", got, err, tc.want)
			}
		})
	}
}

func TestServerURL(t *testing.T) {
	for _, good := range []string{"https://192.0.2.1:6443", "https://[2001:db8::1]:6443", "https://api.example.org", "https://board"} {
		if err := checkServer(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"", "https://", "http://192.0.2.1", "https://a b:99999/x y", "https://a:99999", "https://a:0", "https://a/x", "https://a?x", "https://u:p@a", "https://a#b",
		"https://localhost:6443", "https://127.0.0.1", "https://[::1]:6443", "https://[::ffff:127.0.0.1]", "https://0.0.0.0:6443", "https://a_b"} {
		if checkServer(bad) == nil {
			t.Errorf("%q: got no error", bad)
		}
	}
}

func TestConflictErrorSaysWhatWasChanged(t *testing.T) {
	one := []Conflict{{"deployment/coredns", ".spec.replicas", "conflict"}}
	for want, err := range map[string]error{
		"nothing was changed, because a field has another value that somebody else has set:\n  deployment/coredns: .spec.replicas: conflict":                        &ConflictError{Conflicts: one},
		"objects with these fields were not changed, because a field has another value that somebody else has set:\n  deployment/coredns: .spec.replicas: conflict": &ConflictError{Conflicts: one, Late: true},
	} {
		if err.Error() != want {
			t.Errorf("got %q, want %q", err, want)
		}
		var conflict *ConflictError
		if !errors.As(err, &conflict) {
			t.Error("not found in the chain of errors")
		}
	}
}
