package ensure

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestExistingObjectStays(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "one", Labels: map[string]string{"of": "the administrator"}}
	client := fake.NewClientset(&rbacv1.Role{ObjectMeta: meta})
	for name, want := range map[string]Result{"one": Unchanged, "two": Created} {
		got, err := Exists(t.Context(), client, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}})
		if err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, want)
		}
	}
	if role, err := client.RbacV1().Roles("ns").Get(t.Context(), "one", metav1.GetOptions{}); err != nil || role.Labels["of"] == "" {
		t.Errorf("got %v, %v, want the administrator's", role, err)
	}
}

func TestFollows(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "one"}
	want := &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"key": "new"}}
	for _, tc := range []struct {
		name      string
		exists    map[string]string // nil: it does not exist
		conflicts int               // of the updates before one succeeds
		result    Result
		other     string // what else it has afterwards
		updates   int
	}{
		{"missing", nil, 0, Created, "", 0},
		{"the same", map[string]string{"key": "new", "other": "x"}, 0, Unchanged, "x", 0},
		{"changed", map[string]string{"key": "old", "other": "x"}, 0, Changed, "x", 1},
		{"changed by others, too", map[string]string{"key": "old", "other": "x"}, 2, Changed, "x", 3},
		{"empty", map[string]string{}, 0, Changed, "", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var objects []runtime.Object
			if tc.exists != nil {
				objects = append(objects, &corev1.ConfigMap{ObjectMeta: meta, Data: tc.exists})
			}
			client, updates := fake.NewClientset(objects...), 0
			client.PrependReactor("update", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
				updates++
				return updates <= tc.conflicts, nil, apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, "one", nil)
			})
			got, err := Follows(t.Context(), client, want, metav1.GetOptions{}, func(cm *corev1.ConfigMap) error {
				cm.Data["key"] = "new"
				return nil
			})
			if err != nil || got != tc.result || updates != tc.updates {
				t.Errorf("got %v, %v and %d updates, want %v and %d", got, err, updates, tc.result, tc.updates)
			}
			if cm, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), "one", metav1.GetOptions{}); err != nil || cm.Data["key"] != "new" || cm.Data["other"] != tc.other {
				t.Errorf("got %v, %v", cm.Data, err)
			}
		})
	}
}
