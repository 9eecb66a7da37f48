package server

import (
	"net"

	"github.com/emicklei/go-restful/v3"
)

// WithRouters makes a server pass its routers to told; see apiserver.Config.
func WithRouters(told func(ours, upstreams restful.RouteSelector, services []*restful.WebService)) func(*Config) {
	return func(c *Config) { c.routers = told }
}

// WithMachine makes a server choose among other addresses than this machine's.
func WithMachine(look func() (own []net.IP, routed net.IP)) func(*Config) {
	return func(c *Config) { c.machine = look }
}
