package server

import "github.com/emicklei/go-restful/v3"

// WithRouters makes a server pass its routers to told; see apiserver.Config.
func WithRouters(told func(ours, upstreams restful.RouteSelector, services []*restful.WebService)) func(*Config) {
	return func(c *Config) { c.routers = told }
}
