package apiserver

import (
	"maps"
	_ "unsafe" // for go:linkname

	"k8s.io/apimachinery/pkg/runtime/schema"
	_ "k8s.io/kubernetes/cmd/kube-apiserver/app" // has the table
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
)

// kubePriorities has the place of each API group in discovery, and of each version in its group. A
// group that is missing gets no APIService, and only an info line says so. Upstream does not export the table.
// TestPrioritiesAreUpstreams fails if upstream renames it.
//
//go:linkname kubePriorities k8s.io/kubernetes/cmd/kube-apiserver/app.apiVersionPriorities
var kubePriorities map[schema.GroupVersion]controlplaneapiserver.APIServicePriority

// extensionPriority is the priority that extensions such as metrics-server give their
// APIServices by convention: after all of Kubernetes' own groups.
var extensionPriority = controlplaneapiserver.APIServicePriority{Group: 100, Version: 100}

// priorities returns the whole table with the extensions, in the form that the aggregator
// takes.
func priorities(extensions ...schema.GroupVersion) map[schema.GroupVersion]controlplaneapiserver.APIServicePriority {
	all := maps.Clone(kubePriorities)
	for _, gv := range extensions {
		all[gv] = extensionPriority
	}
	return all
}
