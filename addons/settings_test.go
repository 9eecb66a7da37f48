package addons

import (
	"context"
	"errors"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
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

// kube-proxy gets the address in cluster-info, or without that the one of the Service kubernetes.
func TestAdvertisedServer(t *testing.T) {
	info := func(kubeconfig string) runtime.Object {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"}, Data: map[string]string{"kubeconfig": kubeconfig}}
	}
	endpoints := &discovery.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discovery.LabelServiceName: "kubernetes"}},
		Endpoints:  []discovery.Endpoint{{Addresses: []string{"192.0.2.8"}}}, Ports: []discovery.EndpointPort{{Port: ptr.To[int32](6443)}},
	}
	const cluster = "apiVersion: v1\nkind: Config\nclusters: [{name: '', cluster: {server: 'https://192.0.2.7:6443'}}]"
	for _, tc := range []struct {
		name    string
		objects []runtime.Object
		want    string
		wrong   string // in the error
	}{
		{"cluster-info", []runtime.Object{info(cluster), endpoints}, "https://192.0.2.7:6443", ""},
		{"without it", []runtime.Object{endpoints}, "https://192.0.2.8:6443", ""},
		{"one that no machine can join with", []runtime.Object{info("{"), endpoints}, "", "use --server"},
		{"nothing", nil, "", "use --server"},
	} {
		got, err := advertised(t.Context(), fake.NewClientset(tc.objects...))
		if got != tc.want || tc.wrong == "" && err != nil || tc.wrong != "" && (err == nil || !strings.Contains(err.Error(), tc.wrong)) {
			t.Errorf("%s: got %q, %v, want %q, an error with %q", tc.name, got, err, tc.want, tc.wrong)
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
