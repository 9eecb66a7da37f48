package server

import "github.com/emicklei/go-restful/v3"

// OwnName tells whether Karve gives a file of a data directory this name.
var OwnName = ownName

// WithRouters is told the routers; see apiserver.Config.
func WithRouters(told func(ours, upstreams restful.RouteSelector, services []*restful.WebService)) func(*Config) {
	return func(c *Config) { c.routers = told }
}

// WithClockDoubted says whether the clock is doubted when a token is made.
func WithClockDoubted(doubted bool) func(*Config) {
	return func(c *Config) { c.clockDoubted = func() bool { return doubted } }
}
