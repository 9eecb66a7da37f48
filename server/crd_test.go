package server_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server/deviations"
)

var boats = schema.GroupVersionResource{Group: "karve.test", Version: "v1", Resource: "boats"}

// boatDefinition has two versions of one schema, with a default value, a CEL rule and a status
// subresource.
func boatDefinition() *apiextensionsv1.CustomResourceDefinition {
	object := func(properties map[string]apiextensionsv1.JSONSchemaProps) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{Type: "object", Properties: properties}
	}
	spec := object(map[string]apiextensionsv1.JSONSchemaProps{
		"oars":  {Type: "integer", Default: &apiextensionsv1.JSON{Raw: []byte("12")}},
		"sails": {Type: "integer"},
	})
	spec.XValidations = apiextensionsv1.ValidationRules{{Rule: "self.oars % 2 == 0", Message: "a boat needs an even number of oars"}}
	all := object(map[string]apiextensionsv1.JSONSchemaProps{
		"spec":   spec,
		"status": object(map[string]apiextensionsv1.JSONSchemaProps{"afloat": {Type: "boolean"}}),
	})
	version := func(name string, stored bool) apiextensionsv1.CustomResourceDefinitionVersion {
		return apiextensionsv1.CustomResourceDefinitionVersion{
			Name: name, Served: true, Storage: stored,
			Schema:       &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &all},
			Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
		}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "boats.karve.test"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: boats.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names:      apiextensionsv1.CustomResourceDefinitionNames{Plural: "boats", Singular: "boat", Kind: "Boat", ListKind: "BoatList"},
			Versions:   []apiextensionsv1.CustomResourceDefinitionVersion{version("v1", true), version("v2", false)},
			Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter},
		},
	}
}

func boat(name string, spec, status map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "karve.test/v1", "kind": "Boat",
		"metadata": map[string]any{"name": name}, "spec": spec,
	}}
	if status != nil {
		u.Object["status"] = status
	}
	return u
}

// definitions is the administrator's client for CustomResourceDefinitions.
func (c *cluster) definitions(t *testing.T) apiextensionsclient.CustomResourceDefinitionInterface {
	t.Helper()
	extensions, err := apiextensions.NewForConfig(c.admin)
	fatal(t, err)
	return extensions.ApiextensionsV1().CustomResourceDefinitions()
}

// wantNotFound is nil if err is the API's answer that there is no such object.
func wantNotFound(err error) error {
	switch {
	case err == nil:
		return errors.New("it is still there")
	case apierrors.IsNotFound(err):
		return nil
	}
	return err
}

// TestGarbageOfNewKinds: garbage collection of two kinds, one after the other, takes less than
// the 30 seconds after which upstream discovers new kinds.
func TestGarbageOfNewKinds(t *testing.T) {
	compares(t, deviations.Garbage)
	c := shared(t)
	ctx := t.Context()
	ns := c.namespace(t)
	definitions := c.definitions(t)
	maps := c.CoreV1().ConfigMaps(ns)
	began := time.Now()
	for _, plural := range []string{"rafts", "skiffs"} {
		definition := boatDefinition()
		definition.Name = plural + ".karve.test"
		definition.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: plural, ListKind: plural + "List"}
		create(t, definitions, definition)
		t.Cleanup(func() {
			if err := definitions.Delete(context.Background(), definition.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		client := c.dynamic.Resource(boats.GroupVersion().WithResource(plural)).Namespace(ns)
		eventually.Nil(t, plural+" are served", func() error {
			_, err := client.List(ctx, metav1.ListOptions{})
			return err
		})
		made := time.Now()
		vessel := func(name string, owners ...metav1.OwnerReference) *unstructured.Unstructured {
			object := boat(name, map[string]any{}, nil)
			object.SetKind(plural)
			object.SetOwnerReferences(owners)
			object, err := client.Create(ctx, object, metav1.CreateOptions{})
			fatal(t, err)
			return object
		}
		owner := vessel("owner")
		crew := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: plural, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "karve.test/v1", Kind: plural, Name: owner.GetName(), UID: owner.GetUID()}}}}
		create(t, maps, crew)
		port := create(t, maps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "port-of-" + plural}})
		vessel("owned", metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: port.Name, UID: port.UID})

		fatal(t, client.Delete(ctx, "owner", metav1.DeleteOptions{}))
		fatal(t, maps.Delete(ctx, port.Name, metav1.DeleteOptions{}))
		gone(t, maps, crew.Name)
		eventually.Nil(t, "the custom resource that is owned goes", func() error {
			_, err := client.Get(ctx, "owned", metav1.GetOptions{})
			return wantNotFound(err)
		})
		t.Logf("%s were collected %v after they were served", plural, time.Since(made))
	}
	if took, upstream := time.Since(began), 25*time.Second; took > upstream {
		t.Errorf("two new kinds took %v, no less than upstream's looks are apart", took)
	}
}

// TestCustomResourcesAreCreatedAtOnce: with upstream's delay, no object is less than two seconds younger than its definition.
func TestCustomResourcesAreCreatedAtOnce(t *testing.T) {
	compares(t, deviations.SingleServer)
	c := shared(t)
	ctx, definitions, tries := t.Context(), c.definitions(t), 0
	eventually.Nil(t, "a boat without a delay", func() error {
		tries++
		definition := boatDefinition()
		definition.Spec.Group = fmt.Sprintf("prompt%d.karve.test", tries)
		definition.Name = "boats." + definition.Spec.Group
		create(t, definitions, definition)
		defer func() { _ = definitions.Delete(context.Background(), definition.Name, metav1.DeleteOptions{}) }()
		object := boat("longship", map[string]any{}, nil)
		object.SetAPIVersion(definition.Spec.Group + "/v1")
		var made *unstructured.Unstructured
		eventually.Nil(t, "boats are served", func() (err error) {
			made, err = c.dynamic.Resource(schema.GroupVersionResource{Group: definition.Spec.Group, Version: "v1", Resource: "boats"}).Namespace("default").Create(ctx, object, metav1.CreateOptions{})
			return err
		})
		definition, err := definitions.Get(ctx, definition.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if age := made.GetCreationTimestamp().Sub(apihelpers.FindCRDCondition(definition, apiextensionsv1.Established).LastTransitionTime.Time); age >= 2*time.Second {
			return fmt.Errorf("a boat is created %v after its definition was established", age)
		}
		return nil
	})
}

// The first request for custom resources of a kind succeeds, where upstream reports that
// storage is being initialised. A definition that is deleted before the first request for its
// kind is deleted immediately.
func TestFirstRequestForCustomResourcesSucceeds(t *testing.T) {
	compares(t, deviations.AwaitStorage)
	c := shared(t)
	ctx := t.Context()
	web, err := rest.HTTPClientFor(c.admin) // this client does not retry
	fatal(t, err)
	definitions := c.definitions(t)
	for i := range 5 {
		definition := boatDefinition()
		definition.Spec.Group = fmt.Sprintf("first%d.karve.test", i)
		definition.Name = "boats." + definition.Spec.Group
		create(t, definitions, definition)
		eventually.Nil(t, "boats are established", func() error {
			now, err := definitions.Get(ctx, definition.Name, metav1.GetOptions{})
			if err == nil && !apihelpers.IsCRDConditionTrue(now, apiextensionsv1.Established) {
				err = errors.New("not yet")
			}
			return err
		})
		if i%2 == 0 {
			eventually.Nil(t, "boats are served", func() error {
				resp, err := web.Get(c.URL + "/apis/" + definition.Spec.Group + "/v1/boats")
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				if resp.StatusCode == http.StatusTooManyRequests {
					t.Errorf("%s: %s", definition.Name, resp.Status)
				}
				if resp.StatusCode == http.StatusNotFound {
					return errors.New(resp.Status)
				}
				return nil
			})
		}
		fatal(t, definitions.Delete(ctx, definition.Name, metav1.DeleteOptions{}))
		gone(t, definitions, definition.Name)
	}
	if found := regexp.MustCompile(`boats\.first.*\(re\)initializing`).FindString(c.log.String()); found != "" {
		t.Errorf("the finalizer of definitions: %s", found)
	}
}
