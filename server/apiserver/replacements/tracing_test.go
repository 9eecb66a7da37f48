package replacements

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// chainOf returns a chain of upstream's filters around api, modified by change.
func chainOf(change func(*genericapiserver.Config), api http.Handler) http.Handler {
	c := genericapiserver.NewConfig(legacyscheme.Codecs)
	c.FeatureGate = utilfeature.DefaultFeatureGate
	c.LegacyAPIGroupPrefixes = sets.NewString("/api")
	c.RequestInfoResolver = genericapiserver.NewRequestInfoResolver(c)
	c.Authentication.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{Name: "anyone", Groups: []string{user.AllAuthenticated}}}, true, nil
	})
	c.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	change(c)
	return c.BuildHandlerChainFunc(api, c)
}

// Calls on behalf of a request, such as those of webhooks, carry the same trace context as
// with upstream's chain. A request without a trace context does not go through upstream's
// filter.
func TestTracesArePassedOn(t *testing.T) {
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for name, c := range map[string]struct {
		headers  map[string]string
		untraced bool
	}{
		"none":         {nil, true},
		"other header": {map[string]string{"X-Trace": parent}, true},
		"a trace":      {map[string]string{"traceparent": parent}, false},
		"its state":    {map[string]string{"traceparent": parent, "tracestate": "vendor=1"}, false},
		"baggage":      {map[string]string{"baggage": "key=value"}, false},
		"nonsense":     {map[string]string{"traceparent": "nonsense"}, false},
	} {
		answered := func(change func(*genericapiserver.Config)) (told string, filtered bool) {
			api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				out := http.Header{}
				tracing.Propagators().Inject(r.Context(), headerCarrier(out))
				filtered = bytes.Contains(debug.Stack(), []byte("/otelhttp."))
				fmt.Fprint(w, out)
			})
			r := httptest.NewRequest(http.MethodGet, "/api/v1/namespaces", nil)
			for name, value := range c.headers {
				r.Header.Set(name, value)
			}
			w := httptest.NewRecorder()
			chainOf(change, api).ServeHTTP(w, r)
			return fmt.Sprint(w.Code, w.Body), filtered
		}
		want, filtered := answered(func(*genericapiserver.Config) {})
		if !filtered {
			t.Fatalf("%s: upstream's chain is without its filter: then ours needs no other", name)
		}
		got, filtered := answered(PassTracesOn)
		if got != want {
			t.Errorf("%s: what others are told: got %s, want %s", name, got, want)
		}
		if filtered == c.untraced {
			t.Errorf("%s: went through upstream's filter: got %v, want %v", name, filtered, !c.untraced)
		}
	}
}

// headerCarrier is a propagation.TextMapCarrier.
type headerCarrier http.Header

func (c headerCarrier) Get(key string) string  { return http.Header(c).Get(key) }
func (c headerCarrier) Set(key, value string)  { http.Header(c).Set(key, value) }
func (c headerCarrier) Keys() (names []string) { return nil }

func TestSignalsAreUpstreams(t *testing.T) {
	got := signalsOf(genericapiserver.NewConfig(legacyscheme.Codecs))
	for want, s := range map[string]signal{"MuxAndDiscoveryComplete": got.MuxAndDiscoveryComplete, "NotAcceptingNewRequest": got.NotAcceptingNewRequest} {
		if name := s.(interface{ Name() string }).Name(); name != want || s.Signaled() == nil {
			t.Errorf("the signal %s: got %s with channel %v", want, name, s.Signaled())
		}
	}
	if got.ShuttingDown() != got.NotAcceptingNewRequest.Signaled() {
		t.Error("the signal of the shutdown is not upstream's")
	}
}
