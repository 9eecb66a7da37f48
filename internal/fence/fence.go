// Package fence lets the sender of a request take it back at the last moment: before the datastore writes.
// A context ends with its sender, but only after the goroutine that ends it has run. In a process that was stopped
// for a while, other goroutines may run first.
package fence

import (
	"context"
	"math"
	"time"
)

type key struct{}

// With returns a context whose writes are refused when left returns an error. Otherwise left returns how long they are allowed.
func With(ctx context.Context, left func() (time.Duration, error)) context.Context {
	return context.WithValue(ctx, key{}, left)
}

// Inherit returns a context whose writes are refused when those of from are.
func Inherit(ctx, from context.Context) context.Context {
	if left, ok := from.Value(key{}).(func() (time.Duration, error)); ok {
		return With(ctx, left)
	}
	return ctx
}

// Left returns how long a write is allowed, or why it is refused. A write that nobody takes back is allowed for ever.
func Left(ctx context.Context) (time.Duration, error) {
	if left, ok := ctx.Value(key{}).(func() (time.Duration, error)); ok {
		return left()
	}
	return math.MaxInt64, nil
}

// Check returns why a write is refused, or nil.
func Check(ctx context.Context) error {
	_, err := Left(ctx)
	return err
}
