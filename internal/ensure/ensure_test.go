package ensure

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// What another server writes at the same time stays, and what is right is not written again.
func TestFollowsAfterConflicts(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "one"}
	client, updates := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"other": "x"}}), 0
	client.PrependReactor("update", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		updates++
		return updates <= 2, nil, apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, "one", nil)
	})
	for _, want := range []Result{Changed, Unchanged} {
		got, err := Follows(t.Context(), client, &corev1.ConfigMap{ObjectMeta: meta}, metav1.GetOptions{}, func(cm *corev1.ConfigMap) error {
			cm.Data["key"] = "new"
			return nil
		})
		if err != nil || got != want || updates != 3 {
			t.Errorf("got %v, %v and %d updates, want %v and 3", got, err, updates, want)
		}
	}
	if cm, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), "one", metav1.GetOptions{}); err != nil || cm.Data["key"] != "new" || cm.Data["other"] != "x" {
		t.Errorf("got %v, %v", cm.Data, err)
	}
}
