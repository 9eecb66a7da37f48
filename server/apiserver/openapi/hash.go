package openapi

import (
	"crypto/rand"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	restful "github.com/emicklei/go-restful/v3"
	"k8s.io/component-base/featuregate"
	openapicommon "k8s.io/kube-openapi/pkg/common"

	"github.com/karve-k8s/karve/internal/version"
)

// hash returns what clients take for the hash of a group version's document: they keep a document with the
// same hash for ever. Upstream has to build a document to compute it. This one is of what a
// document is built from: the code, the feature gates and the configuration (all in source), and
// the routes that are served. So it changes whenever the document may. Servers of one version that serve the same have the same.
func hash(source string, service *restful.WebService) string {
	var routes []string
	for _, r := range service.Routes() {
		routes = append(routes, fmt.Sprintf("%s %s %s %q %q %T %T %t", r.Method, r.Path, r.Operation, r.Consumes, r.Produces, r.ReadSample, r.WriteSample, r.Deprecated))
	}
	slices.Sort(routes) // upstream installs some in the order of a map
	return fmt.Sprintf("%X", sha512.Sum512([]byte(source+"\n"+strings.Join(routes, "\n"))))
}

// source returns what the documents of a server have in common. Info has the emulated version.
func source(build string, gates map[featuregate.Feature]bool, config *openapicommon.OpenAPIV3Config) (string, error) {
	text, err := json.Marshal([]any{build, gates, config.Info, config.SecuritySchemes})
	return string(text), err
}

// buildOf identifies the code of a program. name is version.Build. Without a commit in it, the program has an identity of its own each
// time it runs.
func buildOf(name string) string {
	if name == "dev" || strings.HasSuffix(name, "-dirty") {
		return rand.Text()
	}
	return strings.Join([]string{version.Kubernetes, version.Release, name}, " ")
}
