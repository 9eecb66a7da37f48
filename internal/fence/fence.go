// Package fence lets the sender of a request take it back at the last moment: before the datastore writes.
// A context ends with its sender, but only after the goroutine that ends it has run. In a process that was stopped
// for a while, other goroutines may run first.
package fence

import "context"

type key struct{}

// With returns a context whose writes are refused when check returns an error.
func With(ctx context.Context, check func() error) context.Context {
	return context.WithValue(ctx, key{}, check)
}

// Inherit returns a context whose writes are refused when those of from are.
func Inherit(ctx, from context.Context) context.Context {
	if check, ok := from.Value(key{}).(func() error); ok {
		return With(ctx, check)
	}
	return ctx
}

// Check returns why a write is refused, or nil.
func Check(ctx context.Context) error {
	if check, ok := ctx.Value(key{}).(func() error); ok {
		return check()
	}
	return nil
}
