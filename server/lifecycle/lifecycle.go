// Package lifecycle starts the parts of a control plane in order, stops them in reverse order, and says how far that is: to
// users, to systemd and in /readyz. It knows only their names and their dependencies.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Part is a component of the control plane that is started and stopped by itself.
//
// It starts when the parts in Needs are ready. It does not wait for parts that are not in the list,
// because they are disabled. Run runs the part, and calls ready at most once, when the part serves.
// It returns when ctx has ended and everything that it started is gone. If the part fails, it
// returns earlier, with the reason.
//
// Everything that a part hands over to other parts is complete before it calls ready.
type Part struct {
	Name  string
	Needs []string
	Run   func(ctx context.Context, ready func()) error
}

// The verbs that [Run] passes to doing.
const (
	Starting = "starting"
	Stopping = "stopping"
)

// Failed reports to [Run] that the part with the context ctx has failed, and why. The part
// continues to serve the parts that need it until they have stopped. If it returned instead, they
// would lose its services first. Watches of a closed datastore, for example, are restarted again
// and again without a pause, which delays the shutdown. Only the first failure counts.
func Failed(ctx context.Context, err error) {
	if tell, ok := ctx.Value(failedKey{}).(func(error)); ok {
		tell(err)
	}
}

type failedKey struct{}

// Overdue reports to [Run], which is stopping the part with the context ctx, that the part takes too long.
// Run then returns err, and goes on in the background: what the part still uses stops after it.
func Overdue(ctx context.Context, err error) {
	if tell, ok := ctx.Value(overdueKey{}).(func(error)); ok {
		tell(err)
	}
}

type overdueKey struct{}

var (
	// ErrStopped is the failure of a part that returned nil before its context ended.
	ErrStopped = errors.New("stopped by itself")
	// ErrNoAnswer is the last error of a part that has reported none.
	ErrNoAnswer = errors.New("no answer yet")
)

// Run starts each part when the parts that it needs are ready. Parts that do not depend on each
// other start concurrently. When all parts are ready, Run calls up, and waits until ctx ends or a
// part fails. Then it stops the started parts in reverse order. It stops a part only when the
// previous one has returned.
//
//	waiting → starting → ready → stopping → gone
//	             └────────┴─ failed: stop the rest
//
// The parts' contexts have ctx's values but do not end with it, because storage must outlive an API
// server that drains. Run calls doing before each start and stop. The error names the part that
// failed. It is nil if ctx ended first and every part stopped cleanly.
//
// Run calls gone when no part runs any more: before it returns, or later if a part is [Overdue].
func Run(ctx context.Context, parts []Part, doing func(verb, name string), up func() error, gone func()) error {
	type running struct {
		name    string
		cancel  context.CancelFunc
		done    chan error
		overdue chan error
	}
	var started []running
	failures, isReady := make(chan error, 1), make(chan string, len(parts))
	start := func(p Part) {
		doing(Starting, p.Name)
		fail := func(err error) {
			select {
			case failures <- fmt.Errorf("%s: %w", p.Name, err):
			default: // another part failed first
			}
		}
		r := running{name: p.Name, done: make(chan error, 1), overdue: make(chan error, 1)}
		late := func(err error) {
			select {
			case r.overdue <- err:
			default: // it has said so before
			}
		}
		own, cancel := context.WithCancel(context.WithValue(context.WithValue(context.WithoutCancel(ctx), failedKey{}, fail), overdueKey{}, late))
		r.cancel = cancel
		started = append(started, r)
		go func() {
			err := p.Run(own, func() { isReady <- p.Name })
			if err == nil && own.Err() == nil {
				err = ErrStopped
			}
			r.done <- err
			if own.Err() == nil {
				fail(err)
			}
		}()
	}

	var failure error
	waiting, unready := slices.Clone(parts), names(parts)
	for len(unready) > 0 && failure == nil && ctx.Err() == nil {
		var blocked []Part
		for _, p := range waiting {
			if slices.ContainsFunc(p.Needs, func(need string) bool { return slices.Contains(unready, need) }) {
				blocked = append(blocked, p)
			} else {
				start(p)
			}
		}
		waiting = blocked
		select {
		case name := <-isReady:
			unready = slices.DeleteFunc(unready, func(n string) bool { return n == name })
		case failure = <-failures:
		case <-ctx.Done():
		}
	}
	if failure == nil && ctx.Err() == nil {
		if failure = up(); failure == nil {
			select {
			case failure = <-failures:
			case <-ctx.Done():
			}
		}
	}
	errs := []error{failure}
	stopped := func(p running, err error) {
		if err != nil && !errors.Is(err, context.Canceled) && (failure == nil || !errors.Is(failure, err)) {
			errs = append(errs, fmt.Errorf("stop %s: %w", p.name, err))
		}
	}
	for i := len(started) - 1; i >= 0; i-- {
		p := started[i]
		doing(Stopping, p.name)
		p.cancel()
		select {
		case err := <-p.done:
			stopped(p, err)
		case err := <-p.overdue:
			stopped(p, err)
			go func() {
				<-p.done
				for _, below := range slices.Backward(started[:i]) {
					below.cancel()
					<-below.done
				}
				gone()
			}()
			return errors.Join(errs...)
		}
	}
	gone()
	return errors.Join(errs...)
}

func names(parts []Part) []string {
	var all []string
	for _, p := range parts {
		all = append(all, p.Name)
	}
	return all
}

// Within makes the startup of a part fail if it takes longer than limit. The error has the part's
// last error.
func Within(limit time.Duration, p Part, last func() error) Part {
	return Part{p.Name, p.Needs, func(ctx context.Context, ready func()) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		timer := time.AfterFunc(limit, func() {
			cancel(fmt.Errorf("not ready after %v: %w", limit, last()))
		})
		defer timer.Stop()
		err := p.Run(ctx, func() { timer.Stop(); ready() })
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
			return cause
		}
		return err
	}}
}
