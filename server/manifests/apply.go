package manifests

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/control"
)

const (
	requestLimit   = 30 * time.Second
	establishLimit = 10 * time.Second // after that, a retry finds the definition
)

var definitions = schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}

// cluster has the clients, and the inventory as it was read last.
type cluster struct {
	inventory typedcore.ConfigMapInterface
	stored    *corev1.ConfigMap // nil: there is none
	dynamic   dynamic.Interface
	metadata  metadata.Interface
	discovery discovery.CachedDiscoveryInterface
	mapper    *restmapper.DeferredDiscoveryRESTMapper
}

func connect(config *rest.Config) (*cluster, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Timeout, config.WarningHandler = -1, requestLimit, rest.NoWarnings{}
	config.UserAgent = manager
	http, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	typed, err := kubernetes.NewForConfigAndClient(config, http)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfigAndClient(config, http)
	if err != nil {
		return nil, err
	}
	names, err := metadata.NewForConfigAndClient(metadata.ConfigFor(config), http)
	if err != nil {
		return nil, err
	}
	kinds := memory.NewMemCacheClient(discovery.NewDiscoveryClient(typed.RESTClient()))
	return &cluster{
		inventory: typed.CoreV1().ConfigMaps(namespace), dynamic: objects, metadata: names,
		discovery: kinds, mapper: restmapper.NewDeferredDiscoveryRESTMapper(kinds),
	}, nil
}

// desired is an object that is to be applied.
type desired struct {
	object
	mapping *meta.RESTMapping
	id      id
	of      *state
}

// first reports whether others may need the object: it is applied before them and deleted after them.
func first(kind schema.GroupKind) bool {
	return kind == definitions || kind == schema.GroupKind{Kind: "Namespace"}
}

// resolve finds out where the API has an object. Without a namespace it goes to default.
func (c *cluster) resolve(o object) (*desired, error) {
	kind := o.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		err = cmp.Or(c.away(kind.Group), fmt.Errorf("the cluster has no kind %s in %s", kind.Kind, o.GetAPIVersion()))
	}
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		o.SetNamespace("")
	} else if o.GetNamespace() == "" {
		o.SetNamespace(metav1.NamespaceDefault)
	}
	return &desired{object: o, mapping: mapping, id: makeID(kind.GroupKind(), o.GetNamespace(), o.GetName())}, nil
}

// away returns an error if the API of a group does not answer, as that of an extension API server: nobody knows its kinds then.
func (c *cluster) away(group string) error {
	_, _, err := c.discovery.ServerGroupsAndResources()
	failed, partly := discovery.GroupDiscoveryFailedErrorGroups(err)
	if !partly {
		return err
	}
	for version, err := range failed {
		if version.Group == group {
			return fmt.Errorf("the API %s does not answer: %w", version, err)
		}
	}
	return nil
}

// apply creates or changes an object. One that exists and is not the inventory's is not made part of it.
func (c *cluster) apply(ctx context.Context, d *desired) error {
	client := c.dynamic.Resource(d.mapping.Resource).Namespace(d.GetNamespace())
	found, err := client.Get(ctx, d.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		found = nil
	case err != nil:
		return err
	case found.GetDeletionTimestamp() != nil:
		return errors.New("it is being deleted")
	}
	labels := d.GetLabels()
	delete(labels, partOfLabel)
	if found == nil || found.GetLabels()[partOfLabel] == setID {
		if labels == nil {
			labels = map[string]string{}
		}
		labels[partOfLabel] = setID
	}
	d.SetLabels(labels)
	text, err := json.Marshal(d.Object)
	if err != nil {
		return err
	}
	force := d.GetAnnotations()[control.OverwriteAnnotation] != "false"
	_, err = client.Patch(ctx, d.GetName(), types.ApplyPatchType, text,
		metav1.PatchOptions{FieldManager: manager, Force: &force, FieldValidation: metav1.FieldValidationStrict})
	if apierrors.IsConflict(err) && !force {
		err = fmt.Errorf("%w: put that into the file, or leave the field out there", err)
	}
	return err
}

// find returns an object if the inventory has made it, and otherwise nil.
func (c *cluster) find(ctx context.Context, i id) *control.Stray {
	kind, namespace, name := i.split()
	stray := &control.Stray{Object: string(i)}
	mapping, err := c.mapper.RESTMapping(kind)
	if meta.IsNoMatchError(err) {
		if err = c.away(kind.Group); err == nil {
			return nil // its kind is gone, and so is the object
		}
	}
	if err == nil {
		var found *unstructured.Unstructured
		found, err = c.dynamic.Resource(mapping.Resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && (found.GetLabels()[partOfLabel] != setID || found.GetDeletionTimestamp() != nil) {
			return nil
		}
		if err == nil {
			stray.UID = string(found.GetUID())
		}
	}
	if err != nil {
		stray.Problem = withoutQuotes(err)
	}
	return stray
}

// delete deletes the object that has this UID.
func (c *cluster) delete(ctx context.Context, i id, uid string) error {
	kind, namespace, name := i.split()
	mapping, err := c.mapper.RESTMapping(kind)
	if err != nil {
		return err
	}
	err = c.dynamic.Resource(mapping.Resource).Namespace(namespace).Delete(ctx, name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID(uid))}, PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// established waits until a definition's custom resources can be made, or for a while.
func (c *cluster) established(ctx context.Context, d *desired) {
	client := c.dynamic.Resource(d.mapping.Resource)
	_ = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, establishLimit, true, func(ctx context.Context) (bool, error) {
		found, err := client.Get(ctx, d.GetName(), metav1.GetOptions{})
		if err != nil {
			return false, nil
		}
		conditions, _, _ := unstructured.NestedSlice(found.Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(c any) bool {
			m, ok := c.(map[string]any)
			return ok && m["type"] == "Established" && m["status"] == "True"
		}), nil
	})
}
