package datastore

import "context"

// origin is a database of the engine that can be read as of one moment: a file, or that
// of a running engine.
type origin struct {
	path string
	view func(ctx context.Context, body func(ctx context.Context, c *connection) error) error
}

func fileOrigin(path string) origin {
	return origin{path, func(ctx context.Context, body func(context.Context, *connection) error) error {
		return viewEngine(path, func(c *connection) error { return body(ctx, c) })
	}}
}

func (e *Engine) origin() origin { return origin{e.path, e.disk.longRead} }
