package apiserver

import (
	"context"
	"errors"
	"sync/atomic"
)

// Part is the API server as a part of a control plane, with both of its listeners. The
// insecure listener has to close when the secure one has drained, and only this part knows
// when that is.
type Part struct {
	// Configure returns the configuration. Run calls it first, when the parts that this one
	// needs are ready.
	Configure func() (Config, error)
	// Built is called when the chain has been built. From then on, the server closes the
	// listeners itself. Nil: no call.
	Built func()

	server atomic.Pointer[Server]
}

// Run builds the chain, serves it until ctx ends, and closes Config.Loopback.
func (p *Part) Run(ctx context.Context, ready func()) error {
	config, err := p.Configure()
	if err != nil {
		return err
	}
	defer config.Loopback.Close()
	server, err := New(ctx, config)
	if err != nil {
		return err
	}
	if p.Built != nil {
		p.Built()
	}
	p.server.Store(server)
	return server.Run(ctx, ready)
}

// Server returns the server. It is valid once Run has called ready.
func (p *Part) Server() *Server { return p.server.Load() }

// LastError returns the checks that failed in the last request of /readyz.
func (p *Part) LastError() error {
	if server := p.server.Load(); server != nil {
		return server.NotReady()
	}
	return errors.New("not built yet")
}
