package replacements

import (
	"net/http"
	"net/textproto"

	genericfeatures "k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/tracing"
)

// PassTracesOn changes a chain that exports no traces (no --tracing-config-file). Upstream's
// filter then only propagates the trace context of a request, and collects attributes that
// nothing reads. Requests without a trace context take a chain without the filter.
func PassTracesOn(c *genericapiserver.Config) {
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		untraced := *c
		untraced.FeatureGate = withoutTracing{c.FeatureGate}
		return byTrace(build(api, c), build(api, &untraced))
	}
}

// byTrace chooses the handler by whether the request has a trace context.
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

// withoutTracing is a set of feature gates that reports the gate of upstream's tracing filter
// as off. That gate is locked, so it cannot be switched off in the usual way.
type withoutTracing struct{ featuregate.FeatureGate }

// Enabled implements featuregate.FeatureGate.
func (g withoutTracing) Enabled(key featuregate.Feature) bool {
	return key != genericfeatures.APIServerTracing && g.FeatureGate.Enabled(key)
}
