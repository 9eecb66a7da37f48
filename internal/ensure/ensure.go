// Package ensure lets objects of Karve's exist in a cluster. What exists stays as it is, apart from
// what the caller changes in a ConfigMap. Objects of users' files are applied by server/manifests.
package ensure

import (
	"context"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

// Result is what happened to an object.
type Result int

// The results. Unchanged is also that of an error.
const (
	Unchanged Result = iota
	Created
	Changed
)

// Exists creates an object, unless there is one of its kind and name. The kinds are those below.
func Exists(ctx context.Context, client kubernetes.Interface, o runtime.Object) (Result, error) {
	var err error
	switch o := o.(type) {
	case *corev1.ConfigMap:
		_, err = client.CoreV1().ConfigMaps(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
	case *rbacv1.Role:
		_, err = client.RbacV1().Roles(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
	case *rbacv1.RoleBinding:
		_, err = client.RbacV1().RoleBindings(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
	case *rbacv1.ClusterRole:
		_, err = client.RbacV1().ClusterRoles().Create(ctx, o, metav1.CreateOptions{})
	case *rbacv1.ClusterRoleBinding:
		_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, o, metav1.CreateOptions{})
	default:
		err = fmt.Errorf("no client for %T", o)
	}
	switch {
	case apierrors.IsAlreadyExists(err):
		return Unchanged, nil
	case err != nil:
		return Unchanged, err
	}
	return Created, nil
}

// Follows creates a ConfigMap, or lets change correct the one that there is, which has Data. It writes
// only what change has changed. If somebody else writes at the same time, it starts again. get is how the first try
// reads: an answer from the API server's cache may be old, which a write notices.
func Follows(ctx context.Context, client kubernetes.Interface, want *corev1.ConfigMap, get metav1.GetOptions, change func(*corev1.ConfigMap) error) (result Result, err error) {
	all := client.CoreV1().ConfigMaps(want.Namespace)
	again := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	err = retry.OnError(retry.DefaultRetry, again, func() error {
		found, err := all.Get(ctx, want.Name, get)
		get = metav1.GetOptions{}
		if apierrors.IsNotFound(err) {
			if _, err = all.Create(ctx, want, metav1.CreateOptions{}); err == nil {
				result = Created
			}
			return err
		} else if err != nil {
			return err
		}
		if found.Data == nil {
			found.Data = map[string]string{}
		}
		before := found.DeepCopy()
		if err := change(found); err != nil || reflect.DeepEqual(found, before) {
			return err
		}
		if _, err = all.Update(ctx, found, metav1.UpdateOptions{}); err == nil {
			result = Changed
		}
		return err
	})
	if err != nil {
		return Unchanged, fmt.Errorf("ConfigMap %s/%s: %w", want.Namespace, want.Name, err)
	}
	return result, nil
}
