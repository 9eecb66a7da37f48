package apiserver

import (
	"net/http"
	"slices"
	"strconv"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/karve-k8s/karve/server/insecure"
)

// buildPlainChains makes last build two more handlers beside the secure one, with the same filters around the same API:
// audit, priority and fairness, timeouts, impersonation and graceful termination.
//
// On the insecure port, every request is an administrator's. Kubernetes had this step until 1.24, as
// BuildInsecureHandlerChain. On the socket, the kernel says who the user is, and the authorizer is that of the
// secure port.
func (s *Server) buildPlainChains(last *genericapiserver.Config) {
	build := last.BuildHandlerChainFunc
	last.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		open, local := *c, *c
		open.Authentication.Authenticator = authenticator.RequestFunc(anyone)
		open.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
		s.insecureChain = build(api, &open)
		if s.config.Socket != nil {
			local.Authentication.Authenticator = authenticator.RequestFunc(localUser)
			s.socketChain = onlyLocalUsers(build(api, &local))
		}
		return build(api, c)
	}
}

// count makes each chain report the requests that it gets.
func (s *Server) count(last *genericapiserver.Config) {
	if s.config.Seen == nil {
		return
	}
	build := last.BuildHandlerChainFunc
	last.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		next := build(api, c)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.config.Seen()
			next.ServeHTTP(w, r)
		})
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

// localUser authenticates a request on the socket by its connection. It ignores credentials in the request, except for
// impersonation headers.
func localUser(r *http.Request) (*authenticator.Response, bool, error) {
	u, err := insecure.LocalUserOf(r.Context())
	if err != nil {
		return nil, false, err
	}
	return &authenticator.Response{User: &user.DefaultInfo{
		Name: u.Name, UID: strconv.FormatUint(uint64(u.UID), 10), Groups: slices.Concat(u.Groups, []string{user.AllAuthenticated}),
	}}, true, nil
}

// onlyLocalUsers tells everybody else why they may not use the socket. kubectl prints the sentence.
func onlyLocalUsers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := insecure.LocalUserOf(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
