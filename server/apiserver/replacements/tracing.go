package replacements

import (
	"net/http"
	"net/textproto"
	"reflect"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/tracing"
)

// PassTracesOn changes a chain that exports no traces (no --tracing-config-file). Upstream's
// filter then only propagates the trace context of a request, and collects attributes that
// nothing reads. Requests without a trace context take a chain without the filter.
//
// A chain to which feature gates have added a filter stays upstream's. c has flow control: without
// it, each of the two chains would have its own limits.
func PassTracesOn(c *genericapiserver.Config) {
	build := c.BuildHandlerChainFunc
	if reflect.ValueOf(build).Pointer() != reflect.ValueOf(genericapiserver.DefaultBuildHandlerChain).Pointer() {
		return
	}
	c.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return byTrace(build(api, c), untracedChain(api, c, signalsOf(c)))
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
