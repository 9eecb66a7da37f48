package manifests

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/karve-k8s/karve/control"
)

const countPage = 500

// count counts what would go with Namespaces and definitions.
func (c *cluster) count(ctx context.Context, strays []control.Stray) {
	for n := range strays {
		s := &strays[n]
		kind, _, name := id(s.Object).split()
		switch {
		case s.Problem != "" || !first(kind):
		case kind == definitions:
			resource, err := c.mapper.ResourceFor(schema.ParseGroupResource(name).WithVersion(""))
			if err == nil {
				s.With, err = c.countIn(ctx, resource, "")
			}
			s.AtLeast = err != nil
		default:
			s.With, s.AtLeast = c.countAll(ctx, name)
		}
	}
}

// countAll counts the objects in a namespace, without Events and what every namespace has. atLeast: an API did not answer.
func (c *cluster) countAll(ctx context.Context, namespace string) (total int64, atLeast bool) {
	lists, err := c.discovery.ServerPreferredNamespacedResources()
	atLeast = err != nil
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists) {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		for _, r := range list.APIResources {
			var n int64
			if err == nil && r.Name != "events" {
				n, err = c.countIn(ctx, version.WithResource(r.Name), namespace)
			}
			total, atLeast = total+n, atLeast || err != nil
		}
	}
	return total, atLeast
}

// ofEach are the objects that Kubernetes makes in each namespace.
var ofEach = []string{"serviceaccounts/default", "configmaps/kube-root-ca.crt"}

// countIn counts the objects of a resource in a namespace, or in all.
func (c *cluster) countIn(ctx context.Context, resource schema.GroupVersionResource, namespace string) (n int64, err error) {
	for page := ""; ; {
		list, err := c.metadata.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: countPage, Continue: page})
		if err != nil {
			return n, err
		}
		for _, o := range list.Items {
			if !slices.Contains(ofEach, resource.Resource+"/"+o.Name) {
				n++
			}
		}
		if page = list.Continue; page == "" {
			return n, nil
		}
	}
}
