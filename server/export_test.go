package server

// WithEagerOpenAPI makes OpenAPI documents as upstream does; see apiserver.Config.
func WithEagerOpenAPI(c *Config) { c.eagerOpenAPI = true }

// WithUpstreamsHooks leaves a new cluster's objects to upstream; see apiserver.Config.
func WithUpstreamsHooks(c *Config) { c.upstreamsHooks = true }
