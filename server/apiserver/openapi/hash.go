package openapi

import (
	"crypto/rand"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"runtime/debug"
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

// buildOf identifies the code of a program, on whatever machine it was built. name is version.Build. If neither
// that, nor version control, nor sums of modules say what the code is, the program has an identity of its own each
// time it runs.
func buildOf(info *debug.BuildInfo, ok bool, name string) string {
	if !ok {
		return rand.Text()
	}
	var text strings.Builder
	fmt.Fprintln(&text, version.Kubernetes, version.Release, name)
	known := info.Main.Sum != "" || name != "dev" && !strings.HasSuffix(name, "-dirty") // go install MODULE@VERSION, or scripts/build
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			known = true
			fmt.Fprintln(&text, s.Value)
		case "vcs.modified":
			known = known && s.Value == "false"
		}
	}
	fmt.Fprintln(&text, info.GoVersion, info.Main.Path, info.Main.Version)
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		known = known && (m.Sum != "" || strings.HasPrefix(m.Path, "./")) // a directory elsewhere may have any code
		fmt.Fprintln(&text, m.Path, m.Version, m.Sum)
	}
	if !known {
		return rand.Text()
	}
	return text.String()
}
