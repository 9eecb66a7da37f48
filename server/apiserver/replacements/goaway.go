package replacements

import (
	"net/http"

	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/karve-k8s/karve/server/idleconns"
)

// CloseIdle makes the server of c close idle connections soon after GOAWAY when it stops, if only
// this machine can reach its listener. Call it before other functions change the listener of c, so
// that it has the connections as they are accepted.
func CloseIdle(c *genericapiserver.Config) {
	if !idleconns.Local(c.SecureServing.Listener.Addr()) {
		return
	}
	connections := idleconns.Track(c.SecureServing.Listener)
	c.SecureServing.Listener = connections
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return connections.Handler(build(api, c))
	}
}
