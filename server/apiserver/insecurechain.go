package apiserver

import (
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// buildInsecureChain makes the chain of last build a second handler beside the
// secure one: the same filters around the same API, but every request is an
// administrator's. It is the step Kubernetes had as BuildInsecureHandlerChain
// until 1.24, on today's filters: audit, priority and fairness, timeouts,
// impersonation and graceful termination work there too.
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

// anyone authenticates every request as the user the old insecure port had.
// Credentials in the request are not looked at, but for impersonation's.
func anyone(*http.Request) (*authenticator.Response, bool, error) {
	return &authenticator.Response{User: &user.DefaultInfo{
		Name:   "system:unsecured",
		Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated},
	}}, true, nil
}
