package addons

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm/v1beta4"

	"github.com/karve-k8s/karve/internal/version"
)

const (
	// FieldManager owns the fields that Apply sets.
	FieldManager = "karve-addons"

	prefix = "addons.karve/"
	// Label of the objects that Apply made, with the name of the addon. Delete deletes these only.
	Label = prefix + "name"
)

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

// ApplyOptions are those of kubectl apply.
type ApplyOptions struct {
	DryRun         bool // only tell what would happen
	ForceConflicts bool // take the fields of others
}

// clientFor is the client for objects like o.
func clientFor(client dynamic.Interface, o *unstructured.Unstructured) dynamic.ResourceInterface {
	resource, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind()) // the kinds have regular plurals
	return client.Resource(resource).Namespace(o.GetNamespace())
}

// get returns an object as it is in the cluster, or nil.
func get(ctx context.Context, client dynamic.Interface, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	current, err := clientFor(client, o).Get(ctx, o.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", nameOf(o), err)
	}
	return current, nil
}

func nameOf(o *unstructured.Unstructured) string {
	return strings.ToLower(o.GetKind()) + "/" + o.GetName()
}

// Apply creates the objects of an addon, or changes them to what they should be. It first tries all
// of them, so that a conflict, or what the API server refuses, leaves all objects as they are.
// The results beside an error are of objects that were applied before it.
func Apply(ctx context.Context, client dynamic.Interface, name string, objects []*unstructured.Unstructured, o ApplyOptions) ([]Result, error) {
	options := metav1.ApplyOptions{FieldManager: FieldManager, Force: o.ForceConflicts, DryRun: []string{metav1.DryRunAll}}
	before := make([]*unstructured.Unstructured, len(objects))
	var tried []Result
	var conflicts []string
	for i, object := range objects {
		var err error
		if before[i], err = get(ctx, client, object); err != nil {
			return nil, err
		}
		// An object that exists, and that Karve did not make, gets no label: Delete must leave it.
		if before[i] == nil || before[i].GetLabels()[Label] != "" {
			if err := unstructured.SetNestedField(object.Object, name, "metadata", "labels", Label); err != nil {
				return nil, err
			}
		}
		result, err := apply(ctx, client, before[i], object, options)
		if found := conflictsOf(object, err); found != nil {
			conflicts = append(conflicts, found...)
		} else if err != nil {
			return nil, err
		} else {
			tried = append(tried, result)
		}
	}
	switch len(conflicts) {
	case 0:
		if o.DryRun {
			return tried, nil
		}
	case 1:
		return nil, conflictError("a field has another value", conflicts)
	default:
		return nil, conflictError(fmt.Sprintf("%d fields have other values", len(conflicts)), conflicts)
	}
	options.DryRun = nil
	var results []Result
	for i, object := range objects {
		result, err := apply(ctx, client, before[i], object, options)
		if err != nil {
			return results, err
		}
		results = append(results, result)
	}
	return results, nil
}

func apply(ctx context.Context, client dynamic.Interface, before, object *unstructured.Unstructured, options metav1.ApplyOptions) (Result, error) {
	after, err := clientFor(client, object).Apply(ctx, object.GetName(), object, options)
	switch {
	case err != nil:
		return Result{}, fmt.Errorf("%s: %w", nameOf(object), err)
	case before == nil:
		return Result{nameOf(object), Created}, nil
	case equality.Semantic.DeepEqual(content(before), content(after)):
		return Result{nameOf(object), Unchanged}, nil
	}
	return Result{nameOf(object), Configured}, nil
}

func conflictError(what string, conflicts []string) error {
	return fmt.Errorf("nothing was changed, because %s that somebody else has set:%s\n--force-conflicts overwrites them", what, strings.Join(conflicts, ""))
}

// conflictsOf reads the fields in an API server's error.
func conflictsOf(object *unstructured.Unstructured, err error) (conflicts []string) {
	var status apierrors.APIStatus
	if !apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Type == metav1.CauseTypeFieldManagerConflict {
			conflicts = append(conflicts, fmt.Sprintf("\n  %s: %s: %s", nameOf(object), cause.Field, cause.Message))
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

// anySettings are enough for the kinds and names of objects, which do not depend on them.
var anySettings = Settings{Server: "https://server", ServiceRange: v1beta4.DefaultServicesSubnet, ClusterDomain: v1beta4.DefaultServiceDNSDomain, Version: version.Kubernetes}

// existing returns the objects of an addon in the cluster that Apply made, and those that it did not
// make, in the order in which Delete deletes them.
func existing(ctx context.Context, client dynamic.Interface, name string) (made, others []*unstructured.Unstructured, err error) {
	objects, err := Objects(name, anySettings)
	if err != nil {
		return nil, nil, err
	}
	for _, o := range slices.Backward(objects) {
		switch current, err := get(ctx, client, o); {
		case err != nil:
			return nil, nil, err
		case current == nil:
		case current.GetLabels()[Label] == name:
			made = append(made, current)
		default:
			others = append(others, current)
		}
	}
	return made, others, nil
}

// Made returns the objects of an addon that Apply made, such as "configmap/coredns".
func Made(ctx context.Context, client dynamic.Interface, name string) ([]string, error) {
	made, _, err := existing(ctx, client, name)
	var names []string
	for _, o := range made {
		names = append(names, nameOf(o))
	}
	return names, err
}

// Delete deletes the objects of an addon that Apply made. It names the others that it would have
// made, and leaves them.
func Delete(ctx context.Context, client dynamic.Interface, name string) ([]Result, error) {
	made, others, err := existing(ctx, client, name)
	if err != nil {
		return nil, err
	}
	var results []Result
	for _, o := range made {
		err := clientFor(client, o).Delete(ctx, o.GetName(), *metav1.NewPreconditionDeleteOptions(string(o.GetUID())))
		if apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return results, fmt.Errorf("%s: %w", nameOf(o), err)
		}
		results = append(results, Result{nameOf(o), Deleted})
	}
	for _, o := range others {
		results = append(results, Result{nameOf(o), Left})
	}
	return results, nil
}

// State is the state of an addon in a cluster.
type State struct {
	Name   string `json:"name"`
	Made   bool   `json:"made"`            // by Apply
	Image  string `json:"image,omitempty"` // empty: it is not in the cluster
	Wanted int32  `json:"wanted"`          // Pods
	Ready  int32  `json:"ready"`
}

func state(name string, labels map[string]string, pods corev1.PodSpec, wanted, ready int32) State {
	return State{name, labels[Label] == name, pods.Containers[0].Image, wanted, ready}
}

// List returns the state of each addon.
func List(ctx context.Context, client kubernetes.Interface) ([]State, error) {
	states := []State{{Name: KubeProxy}, {Name: CoreDNS}}
	p, err := client.AppsV1().DaemonSets(namespace).Get(ctx, KubeProxy, metav1.GetOptions{})
	if err == nil {
		states[0] = state(KubeProxy, p.Labels, p.Spec.Template.Spec, p.Status.DesiredNumberScheduled, p.Status.NumberReady)
	} else if !apierrors.IsNotFound(err) {
		return nil, err
	}
	d, err := client.AppsV1().Deployments(namespace).Get(ctx, CoreDNS, metav1.GetOptions{})
	if err == nil {
		states[1] = state(CoreDNS, d.Labels, d.Spec.Template.Spec, *d.Spec.Replicas, d.Status.ReadyReplicas)
	} else if !apierrors.IsNotFound(err) {
		return nil, err
	}
	return states, nil
}
