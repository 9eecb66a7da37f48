package addons

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

const (
	// FieldManager owns the fields that Apply sets.
	FieldManager = "karve-addons"

	prefix = "addons.karve/"
	// Label of the objects that Apply made, with the name of the addon. Delete deletes these only.
	Label = prefix + "name"
)

// resources are those of the addons' objects, in the order in which Delete deletes them.
var resources = []struct {
	kind string
	schema.GroupVersionResource
	namespaced bool
}{
	{"DaemonSet", schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}, true},
	{"Deployment", schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, true},
	{"Service", schema.GroupVersionResource{Version: "v1", Resource: "services"}, true},
	{"ConfigMap", schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, true},
	{"RoleBinding", schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"}, true},
	{"Role", schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"}, true},
	{"ClusterRoleBinding", schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"}, false},
	{"ClusterRole", schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}, false},
	{"ServiceAccount", schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}, true},
}

// clientFor is the client for objects like o.
func clientFor(client dynamic.Interface, o *unstructured.Unstructured) dynamic.ResourceInterface {
	for _, r := range resources {
		if r.kind == o.GetKind() {
			return in(client, r.GroupVersionResource, r.namespaced)
		}
	}
	panic("addons: no resource for kind " + o.GetKind()) // a test applies all
}

func in(client dynamic.Interface, r schema.GroupVersionResource, namespaced bool) dynamic.ResourceInterface {
	if namespaced {
		return client.Resource(r).Namespace(namespace)
	}
	return client.Resource(r)
}

// What happened to an object.
const (
	Created    = "created"
	Configured = "configured"
	Unchanged  = "unchanged"
	Deleted    = "deleted"
	Left       = "left, because Karve did not make it"
)

// Result is what happened to an object.
type Result struct {
	Object string // such as "configmap/coredns"
	Action string
}

// Conflict is a field with another value, which somebody else has set.
type Conflict struct {
	Object, Field, Cause string
}

// ConflictError lists the fields that Apply would have changed although others have set them.
type ConflictError struct {
	Conflicts []Conflict
	// Late is true if somebody has set them since Apply tried. It has then applied the other objects.
	Late bool
}

func (e *ConflictError) Error() string {
	var text strings.Builder
	what := "nothing was"
	if e.Late {
		what = "objects with these fields were not"
	}
	fields := "a field has another value"
	if n := len(e.Conflicts); n != 1 {
		fields = fmt.Sprintf("%d fields have other values", n)
	}
	fmt.Fprintf(&text, "%s changed, because %s that somebody else has set:", what, fields)
	for _, c := range e.Conflicts {
		fmt.Fprintf(&text, "\n  %s: %s: %s", c.Object, c.Field, c.Cause)
	}
	return text.String()
}

// ApplyOptions are those of kubectl apply.
type ApplyOptions struct {
	DryRun         bool // only tell what would happen
	ForceConflicts bool // take the fields of others
}

// Apply creates the objects of an addon, or changes them to what they should be. It first tries all
// of them, so that a [ConflictError], or what the API server refuses, leaves all objects as they are.
// The results beside an error are of objects that were applied before it, or have been nevertheless.
func Apply(ctx context.Context, client dynamic.Interface, name string, objects []*unstructured.Unstructured, o ApplyOptions) ([]Result, error) {
	// An object that exists, and that Karve did not make, gets no label: Delete must leave it.
	for _, object := range objects {
		current, err := clientFor(client, object).Get(ctx, object.GetName(), metav1.GetOptions{})
		if err == nil && current.GetLabels()[Label] == "" {
			continue
		} else if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("%s: %w", nameOf(object), err)
		}
		labels := object.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[Label] = name
		object.SetLabels(labels)
	}
	results, err := applyAll(ctx, client, objects, true, o.ForceConflicts)
	if o.DryRun {
		return results, err
	} else if err != nil {
		return nil, err
	}
	return applyAll(ctx, client, objects, false, o.ForceConflicts)
}

func applyAll(ctx context.Context, client dynamic.Interface, objects []*unstructured.Unstructured, dryRun, force bool) ([]Result, error) {
	options := metav1.ApplyOptions{FieldManager: FieldManager, Force: force}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	var results []Result
	var conflicts []Conflict
	for _, object := range objects {
		c := clientFor(client, object)
		before, err := c.Get(ctx, object.GetName(), metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return results, fmt.Errorf("%s: %w", nameOf(object), err)
		}
		missing := err != nil
		after, err := c.Apply(ctx, object.GetName(), object, options)
		if found := conflictsOf(object, err); found != nil {
			conflicts = append(conflicts, found...)
			continue
		}
		switch {
		case err != nil:
			return results, fmt.Errorf("%s: %w", nameOf(object), err)
		case missing:
			results = append(results, Result{nameOf(object), Created})
		case equality.Semantic.DeepEqual(content(before), content(after)):
			results = append(results, Result{nameOf(object), Unchanged})
		default:
			results = append(results, Result{nameOf(object), Configured})
		}
	}
	if conflicts != nil {
		return results, &ConflictError{Conflicts: conflicts, Late: !dryRun && len(results) > 0}
	}
	return results, nil
}

// conflictsOf reads the fields in an API server's error.
func conflictsOf(object *unstructured.Unstructured, err error) (conflicts []Conflict) {
	var status apierrors.APIStatus
	if !apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Type == metav1.CauseTypeFieldManagerConflict {
			conflicts = append(conflicts, Conflict{nameOf(object), cause.Field, cause.Message})
		}
	}
	return conflicts
}

// content is an object without what the API server itself keeps about it.
func content(o *unstructured.Unstructured) map[string]any {
	o = o.DeepCopy()
	for _, field := range []string{"managedFields", "resourceVersion", "generation"} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	return o.Object
}

func nameOf(o *unstructured.Unstructured) string {
	return strings.ToLower(o.GetKind()) + "/" + o.GetName()
}

// Made returns the objects of an addon that Apply made, as nameOf names them.
func Made(ctx context.Context, client dynamic.Interface, name string) ([]string, error) {
	var names []string
	err := each(ctx, client, name, func(_ dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		names = append(names, nameOf(o))
		return nil
	})
	return names, err
}

func each(ctx context.Context, client dynamic.Interface, name string, do func(dynamic.ResourceInterface, *unstructured.Unstructured) error) error {
	for _, r := range resources {
		c := in(client, r.GroupVersionResource, r.namespaced)
		list, err := c.List(ctx, metav1.ListOptions{LabelSelector: Label + "=" + name})
		if err != nil {
			return fmt.Errorf("list %s: %w", r.Resource, err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			o.SetKind(r.kind)
			if err := do(c, o); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s: %w", nameOf(o), err)
			}
		}
	}
	return nil
}

// Delete deletes the objects of an addon that Apply made. It names the others that it would have
// made, and leaves them.
func Delete(ctx context.Context, client dynamic.Interface, name string) ([]Result, error) {
	var results []Result
	err := each(ctx, client, name, func(c dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		uid := o.GetUID()
		err := c.Delete(ctx, o.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if err == nil {
			results = append(results, Result{nameOf(o), Deleted})
		}
		return err
	})
	if err != nil {
		return results, err
	}
	objects, err := parse(manifests[name])
	if err != nil {
		return results, err
	}
	for _, o := range objects {
		if slices.Contains(results, Result{nameOf(o), Deleted}) {
			continue
		}
		_, err := clientFor(client, o).Get(ctx, o.GetName(), metav1.GetOptions{})
		if err == nil {
			results = append(results, Result{nameOf(o), Left})
		} else if !apierrors.IsNotFound(err) {
			return results, err
		}
	}
	return results, nil
}
