package lifecycle

import (
	"context"
	"errors"
	"sync"
	"time"
)

// How long Retried waits before it runs a part again.
const (
	firstRetry = time.Second // doubled with each attempt
	lastRetry  = 30 * time.Second
)

// Retried runs a part again, after a growing pause, when it has failed. The other parts go on
// meanwhile. It calls blocked with the reason of each failure. A part whose error is [Final] is not run
// again.
//
// Parts that do their work through the API are Retried: what somebody has written through the API
// may keep them from it, and only an API server that goes on lets an administrator remove that.
func Retried(p Part, blocked func(error)) Part {
	return Part{p.Name, p.Needs, func(ctx context.Context, ready func()) error {
		ready = sync.OnceFunc(ready)
		for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
			began := time.Now()
			err := once(ctx, p, ready)
			if ctx.Err() != nil || errors.As(err, new(final)) {
				return err
			}
			if err == nil {
				err = ErrStopped
			}
			blocked(err)
			if time.Since(began) > lastRetry { // it has run, or has tried for long itself
				wait = firstRetry
			}
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return nil
			}
		}
	}}
}

// once runs a part, and ends what it has left behind.
func once(ctx context.Context, p Part, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return p.Run(ctx, ready)
}

// Final marks an error of a [Retried] part after which another attempt would be wrong or useless, such
// as one of the configuration.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return final{err}
}

type final struct{ error }

func (f final) Unwrap() error { return f.error }
