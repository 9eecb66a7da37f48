// Package example is a small operator on controller-runtime, with its test on a whole
// cluster of package servertest/process. A Boat gets a Deployment that rows it.
package example

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// Kind is the kind that the operator reconciles.
var Kind = schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Boat"}

// NewBoat returns a Boat without a crew.
func NewBoat() *unstructured.Unstructured {
	boat := &unstructured.Unstructured{}
	boat.SetGroupVersionKind(Kind)
	return boat
}

// Operator reconciles Boats.
type Operator struct{ client.Client }

// SetupWithManager adds it to a manager.
func (o *Operator) SetupWithManager(manager ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(manager).Named("boats").For(NewBoat()).Owns(&appsv1.Deployment{}).Complete(o)
}

// Reconcile gives a Boat a Deployment with as many Pods as its crew, and reports their
// number in the Boat's status.
func (o *Operator) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	boat := NewBoat()
	if err := o.Get(ctx, request.NamespacedName, boat); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	crew, _, err := unstructured.NestedInt64(boat.Object, "spec", "crew")
	if err != nil {
		return ctrl.Result{}, err
	}
	rowers := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: boat.GetName(), Namespace: boat.GetNamespace()}}
	_, err = controllerutil.CreateOrUpdate(ctx, o.Client, rowers, func() error {
		replicas, labels := int32(crew), map[string]string{"boat": boat.GetName()}
		rowers.Spec.Replicas = &replicas
		rowers.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
		rowers.Spec.Template.Labels = labels
		rowers.Spec.Template.Spec.Containers = []corev1.Container{{Name: "rower", Image: "example.org/rower"}}
		return controllerutil.SetControllerReference(boat, rowers, o.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	ready := int64(rowers.Status.Replicas)
	if told, _, _ := unstructured.NestedInt64(boat.Object, "status", "ready"); told == ready {
		return ctrl.Result{}, nil
	}
	if err := unstructured.SetNestedField(boat.Object, ready, "status", "ready"); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, o.Status().Update(ctx, boat)
}
