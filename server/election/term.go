package election

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	writes "github.com/karve-k8s/karve/internal/fence"
	"github.com/karve-k8s/karve/server/lifecycle"
)

// ErrOver is wrapped by the errors of requests that come after the end of a term.
var ErrOver = errors.New("this server no longer leads")

// ErrRuns is to be wrapped by the error of a leader's work that could not be stopped. It must not begin
// again in this process.
var ErrRuns = lifecycle.Final(errors.New("not everything has stopped"))

var (
	errLost    = fmt.Errorf("%w: it has not renewed its lease", ErrOver)
	errTaken   = fmt.Errorf("%w: its lease was changed or deleted", ErrOver)
	errStopped = fmt.Errorf("%w: it stops", ErrOver)
)

// Term is a time in which this server leads. It ends when the server stops, when it could not renew
// the lease, or when it sees that the lease no longer names it; at the latest, when others may take it. A nil *Term never ends.
type Term struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer

	clock clock
	mu    sync.Mutex
	until moment
}

func newTerm(until moment, c clock) *Term {
	t := &Term{until: until, clock: c}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	// It may run before t.timer is set.
	t.timer = time.AfterFunc(time.Until(until.running), func() { t.cancel(errLost) })
	return t
}

// extend moves the end of the term. A term that has ended remains so.
func (t *Term) extend(until moment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until = until
	t.timer.Reset(time.Until(until.running))
}

func (t *Term) end(cause error) {
	t.timer.Stop()
	t.cancel(cause)
}

// Done is closed when the term has ended.
func (t *Term) Done() <-chan struct{} { return t.ctx.Done() }

// err returns why the term has ended. The timer of a process that was stopped may be late, and the timer does not
// count the time in which the machine was suspended.
func (t *Term) err() error {
	t.mu.Lock()
	late := t.clock.past(t.until)
	t.mu.Unlock()
	if late {
		t.end(errLost)
	}
	return context.Cause(t.ctx)
}

// left returns how long the term lasts, unless it is renewed, or why it has ended.
func (t *Term) left() (time.Duration, error) {
	if err := t.err(); err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.clock.left(t.until), nil
}

// during calls work with a context that ends with ctx or the term. If the term has ended, it
// returns nil.
func (t *Term) during(ctx context.Context, work func(context.Context, *Term) error) error {
	if t.err() != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	if err := work(ctx, t); t.err() == nil {
		return err
	}
	return nil
}

// Fence returns a copy of a client's configuration with which requests fail when the term has
// ended. Those under way end then, and write nothing: the datastore asks just before. Much of upstream's code
// goes on with a request after its context has ended, and another server may lead by then.
func (t *Term) Fence(client *rest.Config) *rest.Config {
	if t == nil {
		return client
	}
	fenced := rest.CopyConfig(client)
	fenced.Wrap(func(next http.RoundTripper) http.RoundTripper { return fence{t, next} })
	return fenced
}

// fence passes requests on while the term lasts.
type fence struct {
	term *Term
	next http.RoundTripper
}

func (f fence) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := f.term.err(); err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(writes.With(r.Context(), f.term.left))
	unwatch := context.AfterFunc(f.term.ctx, func() { cancel(context.Cause(f.term.ctx)) })
	done := func() { unwatch(); cancel(nil) }
	response, err := f.send(r.WithContext(ctx))
	if err != nil {
		if over := context.Cause(ctx); over != nil && r.Context().Err() == nil {
			err = over
		}
		done()
		return nil, err
	}
	response.Body = &fencedBody{response.Body, done}
	return response, nil
}

// send is the next RoundTrip, but returns when the context ends. Upstream's source of tokens waits for half a minute between its
// attempts, whatever the context is (k8s.io/controller-manager/pkg/clientbuilder), and a controller that waits keeps the term's
// work from ending. What it sends after that has a context that has ended.
func (f fence) send(r *http.Request) (*http.Response, error) {
	type answer struct {
		*http.Response
		error
	}
	answers := make(chan answer, 1)
	go func() {
		response, err := f.next.RoundTrip(r)
		answers <- answer{response, err}
	}()
	select {
	case a := <-answers:
		return a.Response, a.error
	case <-r.Context().Done():
		go func() {
			if a := <-answers; a.Response != nil {
				a.Body.Close()
			}
		}()
		return nil, r.Context().Err()
	}
}

// WrappedRoundTripper is for client-go, which looks through wrappers.
func (f fence) WrappedRoundTripper() http.RoundTripper { return f.next }

// fencedBody ends with its term. It forgets the term when it is closed.
type fencedBody struct {
	io.ReadCloser
	done func()
}

func (b *fencedBody) Close() error {
	defer b.done()
	return b.ReadCloser.Close()
}
