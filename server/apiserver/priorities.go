package apiserver

import (
	"maps"

	"k8s.io/apimachinery/pkg/runtime/schema"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
)

// rank is the place of a group in discovery, and of each of its versions in the group. Higher
// ranks come first.
type rank struct {
	group    int32
	versions map[string]int32
}

// kubeGroups ranks the API groups that kube-apiserver adds to those of the generic control
// plane. Upstream does not export this table (cmd/kube-apiserver/app/aggregator.go). If a
// group is missing here, it gets no APIService, and only an info line says so.
// TestPrioritiesMatchUpstream compares the two tables.
var kubeGroups = map[string]rank{
	"":                  {18000, map[string]int32{"v1": 1}},
	"apps":              {17800, map[string]int32{"v1": 15}},
	"autoscaling":       {17500, map[string]int32{"v1": 15, "v2": 30, "v2beta1": 9, "v2beta2": 1}},
	"batch":             {17400, map[string]int32{"v1": 15, "v1beta1": 9, "v2alpha1": 9}},
	"networking.k8s.io": {17200, map[string]int32{"v1": 15, "v1beta1": 9}},
	"policy":            {17100, map[string]int32{"v1": 15, "v1beta1": 9}},
	"storage.k8s.io":    {16800, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha1": 1}},
	"scheduling.k8s.io": {16600, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha3": 3}},
	"node.k8s.io":       {16300, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha1": 1}},
	"resource.k8s.io":   {16200, map[string]int32{"v1": 21, "v1beta2": 15, "v1beta1": 9, "v1alpha3": 1}},
	"lifecycle.k8s.io":  {15700, map[string]int32{"v1alpha1": 1}},
}

// extensionPriority is the priority that extensions such as metrics-server give their
// APIServices by convention: after all of Kubernetes' own groups.
var extensionPriority = controlplaneapiserver.APIServicePriority{Group: 100, Version: 100}

// priorities returns the whole table with the extensions, in the form that the aggregator
// takes.
func priorities(extensions ...schema.GroupVersion) map[schema.GroupVersion]controlplaneapiserver.APIServicePriority {
	all := maps.Clone(controlplaneapiserver.DefaultGenericAPIServicePriorities())
	for group, r := range kubeGroups {
		for version, v := range r.versions {
			gv := schema.GroupVersion{Group: group, Version: version}
			all[gv] = controlplaneapiserver.APIServicePriority{Group: r.group, Version: v}
		}
	}
	for _, gv := range extensions {
		all[gv] = extensionPriority
	}
	return all
}
