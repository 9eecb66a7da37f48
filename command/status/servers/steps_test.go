package servers

import (
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/server/membership"
)

// A node counts while its Lease lasts, unless it has come with a certificate of the new authority, or without one.
func TestNodesFollow(t *testing.T) {
	node := func(name string, age time.Duration, issuer *string) runtime.Object {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: name}, Spec: coordinationv1.LeaseSpec{
			LeaseDurationSeconds: ptr.To[int32](40), RenewTime: &metav1.MicroTime{Time: time.Now().Add(-age)}}}
		if issuer != nil {
			l.Annotations = map[string]string{membership.IssuerAnnotation: *issuer}
		}
		return l
	}
	followed := []runtime.Object{node("followed", 0, ptr.To("new")), node("gone", time.Hour, ptr.To("old")), node("simulated", 0, ptr.To(""))}
	if err := NodesFollow(t.Context(), fake.NewClientset(followed...), "new"); err != nil {
		t.Error(err)
	}
	err := NodesFollow(t.Context(), fake.NewClientset(append(followed, node("unseen", 0, nil), node("late", 0, ptr.To("old")))...), "new")
	if err == nil || !strings.Contains(err.Error(), ": late, unseen. ") || strings.Contains(err.Error(), "gone") {
		t.Errorf("got %v, want the nodes late and unseen", err)
	}
	var many []runtime.Object
	for n := range 13 {
		many = append(many, node(fmt.Sprintf("n%d", n), 0, nil))
	}
	if err := NodesFollow(t.Context(), fake.NewClientset(many...), "new"); err == nil || !strings.Contains(err.Error(), ", and 10 more.") {
		t.Errorf("got %v, want not all names", err)
	}
}
