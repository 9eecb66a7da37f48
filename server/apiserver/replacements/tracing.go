package replacements

import (
	"net/http"
	"net/textproto"

	genericfeatures "k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/tracing"
)

// PassTracesOn changes a chain that has no traces to write (no
// --tracing-config-file): upstream's filter then only passes on the trace that a
// request belongs to, and gathers attributes for nobody. Requests that belong to
// none go by another chain without it.
func PassTracesOn(c *genericapiserver.Config) {
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		untraced := *c
		untraced.FeatureGate = withoutTracing{c.FeatureGate}
		return byTrace(build(api, c), build(api, &untraced))
	}
}

// byTrace asks the first handler where a request says which trace it belongs to.
func byTrace(traced, untraced http.Handler) http.Handler {
	var headers []string
	for _, name := range tracing.Propagators().Fields() {
		headers = append(headers, textproto.CanonicalMIMEHeaderKey(name))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range headers {
			if len(r.Header[name]) > 0 {
				traced.ServeHTTP(w, r)
				return
			}
		}
		untraced.ServeHTTP(w, r)
	})
}

// withoutTracing are feature gates, but for the one that puts upstream's filter
// into a chain; it is locked, and so can't be asked for.
type withoutTracing struct{ featuregate.FeatureGate }

// Enabled implements featuregate.FeatureGate.
func (g withoutTracing) Enabled(key featuregate.Feature) bool {
	return key != genericfeatures.APIServerTracing && g.FeatureGate.Enabled(key)
}
