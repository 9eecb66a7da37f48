package apiserver

import (
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// buildInsecureChain makes last build a second handler beside the secure one. It has the same
// filters around the same API, but every request is an administrator's. Kubernetes had this
// step until 1.24, as BuildInsecureHandlerChain. Here it uses today's filters, so audit,
// priority and fairness, timeouts, impersonation and graceful termination work on the insecure
// port too.
func (s *Server) buildInsecureChain(last *genericapiserver.Config) {
	build := last.BuildHandlerChainFunc
	last.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		open := *c
		open.Authentication.Authenticator = authenticator.RequestFunc(anyone)
		open.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
		s.insecureChain = build(api, &open)
		return build(api, c)
	}
}

// anyone authenticates every request as the user of the old insecure port. It ignores
// credentials in the request, except for impersonation headers.
func anyone(*http.Request) (*authenticator.Response, bool, error) {
	return &authenticator.Response{User: &user.DefaultInfo{
		Name:   "system:unsecured",
		Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated},
	}}, true, nil
}
