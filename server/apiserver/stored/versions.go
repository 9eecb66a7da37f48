package stored

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// versions counts the stored objects of Kubernetes' own kinds by the version that they are
// stored in. It leaves out custom resources, whose definition names their versions
// (status.versions), and encrypted objects.
type versions struct {
	objects map[schema.GroupVersionKind]int
}

// versionCount is how many objects of a resource are stored in a version.
type versionCount struct {
	Resource schema.GroupVersionResource
	Objects  int
}

// String is such as "3 podgroups.scheduling.k8s.io as v1alpha2".
func (s versionCount) String() string {
	return fmt.Sprintf("%d %s as %s", s.Objects, s.Resource.GroupResource(), s.Resource.Version)
}

// sentence names all of them, separated by commas.
func sentence(all []versionCount) string {
	var texts []string
	for _, s := range all {
		texts = append(texts, s.String())
	}
	return strings.Join(texts, ", ")
}

// knownSchemes have all kinds that this program can read, but for custom resources.
func knownSchemes() []*runtime.Scheme {
	return []*runtime.Scheme{legacyscheme.Scheme, apiextensionsserver.Scheme, aggregatorscheme.Scheme}
}

// add counts an object. key is that of the datastore without the API server's prefix, such as
// "podgroups/default/one".
func (s *versions) add(key string, value []byte) {
	if customResource(key) { // before its JSON is parsed
		return
	}
	kind, ok := storedAs(value)
	if !ok {
		return
	}
	if s.objects == nil {
		s.objects = map[schema.GroupVersionKind]int{}
	}
	s.objects[kind]++
}

// customResource reports whether the object under key is a custom resource, or one of another API
// server: their keys begin with the name of their group.
func customResource(key string) bool {
	group, _, _ := strings.Cut(key, "/")
	return strings.Contains(group, ".") && group != aggregatorGroup && group != extensionsGroup
}

const (
	aggregatorGroup = "apiregistration.k8s.io"
	extensionsGroup = "apiextensions.k8s.io"
)

// protobufPrefix begins an object that is stored as protobuf (k8s.io/apimachinery
// pkg/runtime/serializer/protobuf).
var protobufPrefix = []byte("k8s\x00")

// storedAs returns the kind and version of a stored value. It does not decode the object, because
// this program may know no type for it.
func storedAs(value []byte) (schema.GroupVersionKind, bool) {
	var typed runtime.TypeMeta
	if text, ok := bytes.CutPrefix(value, protobufPrefix); ok {
		var object runtime.Unknown
		if object.Unmarshal(text) != nil {
			return schema.GroupVersionKind{}, false
		}
		typed = object.TypeMeta
	} else if json.Unmarshal(value, &typed) != nil {
		return schema.GroupVersionKind{}, false
	}
	return schema.FromAPIVersionAndKind(typed.APIVersion, typed.Kind), typed.Kind != ""
}

// unreadable returns the objects that this program cannot read: it has no type for their version.
func (s *versions) unreadable() (all []versionCount) {
	for kind, objects := range s.objects {
		if !slices.ContainsFunc(knownSchemes(), func(known *runtime.Scheme) bool { return known.Recognizes(kind) }) {
			all = append(all, versionCount{resourceOf(kind), objects})
		}
	}
	slices.SortFunc(all, func(a, b versionCount) int { return cmp.Compare(a.Resource.String(), b.Resource.String()) })
	return all
}

// resourceOf returns the resource of a kind of Kubernetes' own.
func resourceOf(kind schema.GroupVersionKind) schema.GroupVersionResource {
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	return resource
}
