package egress

import (
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// ErrRedirect is wrapped by the error of a webhook's client for an answer that redirects it to
// another host. Upstream follows it (CVE-2020-8561): whoever answers for a webhook then chooses what the
// API server connects to.
var ErrRedirect = errors.New("a redirect of the webhook to another host is refused")

// StayAtHost returns a resolver whose clients follow no redirect to another host.
func StayAtHost(resolver webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
	stay := func(c *rest.Config, err error) (*rest.Config, error) {
		if err != nil {
			return nil, err
		}
		c = rest.CopyConfig(c) // it may be the configuration of all clients of this API server
		c.Wrap(func(next http.RoundTripper) http.RoundTripper { return sameHostTransport{next} })
		return c, nil
	}
	return &webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc: func(hostPort string) (*rest.Config, error) {
			return stay(resolver.ClientConfigFor(hostPort))
		},
		ClientConfigForServiceFunc: func(name, namespace string, port int) (*rest.Config, error) {
			return stay(resolver.ClientConfigForService(name, namespace, port))
		},
	}
}

// StayingPlugin makes the clients of an admission plugin stay at their hosts. It belongs before other
// decorators, which hide the plugin.
func StayingPlugin(plugin admission.Interface, _ string) admission.Interface {
	if p, ok := plugin.(initializer.WantsAuthenticationInfoResolverWrapper); ok {
		p.SetAuthenticationInfoResolverWrapper(StayAtHost)
	}
	return plugin
}

// sameHostTransport refuses what http.Client sends because of a redirect to another host.
type sameHostTransport struct{ next http.RoundTripper }

func (s sameHostTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Response != nil && r.Response.Request != nil && origin(r) != origin(r.Response.Request) {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, fmt.Errorf("%w: %q", ErrRedirect, r.URL.Host)
	}
	return s.next.RoundTrip(r)
}

// WrappedRoundTripper lets upstream find the transport.
func (s sameHostTransport) WrappedRoundTripper() http.RoundTripper { return s.next }

// origin is where a request goes. Its Host is the webhook's, where the URL has an endpoint's.
func origin(r *http.Request) string {
	if r.Host != "" {
		return r.URL.Scheme + "://" + r.Host
	}
	return r.URL.Scheme + "://" + r.URL.Host
}
